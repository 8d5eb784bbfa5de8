"""ClickHouse inside of this process (chdb), on a folder that no other process can use meanwhile."""

import fcntl
import os
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
from chdb.session import Session

from dagmaster.data.engine import SETTINGS
from dagmaster.data.sql import DATABASE
from dagmaster.errors import Conflict, QueryFailed

LOCK = "dagmaster.lock"
OPEN_SESSION: Any = Session  # chdb is not typed
# One block for each insert, however large: blocks are atomic, and what a token deduplicates.
ONE_BLOCK = {"min_insert_block_size_rows": 1 << 40, "min_insert_block_size_bytes": 0, "max_insert_threads": 1}


class ChdbEngine:
    """A session for each thread: one session runs one query at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.users = 0
        self.appending = threading.Lock()
        self._lock_file = _lock(folder)
        self._sessions: list[Any] = []
        self._guard = threading.Lock()
        self._local = threading.local()
        try:
            self._execute(f"CREATE DATABASE IF NOT EXISTS {DATABASE}", "Null", {})
        except BaseException:
            self._release()
            raise

    def query(self, sql: str, parameters: Mapping[str, str]) -> pa.Table:
        result = self._execute(f"{sql} {_settings(SETTINGS)}", "ArrowStream", parameters)
        with pa.ipc.open_stream(pa.py_buffer(result.bytes())) as reader:
            return reader.read_all()

    def batches(self, sql: str, parameters: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
        """As they are computed: not all rows need fit into memory. A session of its own, which others cannot block."""
        session = self._new_session()
        try:
            with session.send_query(f"{sql} {_settings(SETTINGS)}", "Arrow", params=dict(parameters)) as stream:
                yield from stream.record_batch()
        except RuntimeError as error:
            raise QueryFailed(_reason(error)) from error
        finally:
            self._drop_session(session)

    def command(self, sql: str, parameters: Mapping[str, str] | None = None) -> None:
        self._execute(sql, "Null", parameters or {})

    def insert(self, table: str, columns: str, rows: pa.Table, token: str | None = None) -> None:
        """Rows of one token are added once, however often they are inserted."""
        settings = {**SETTINGS, **ONE_BLOCK} | ({"insert_deduplication_token": token} if token else {})
        with tempfile.NamedTemporaryFile(suffix=".arrow", dir=self.folder) as file:
            with pa.ipc.new_stream(file, rows.schema) as writer:
                writer.write_table(rows)
            file.flush()
            source = f"SELECT * FROM file({_text(file.name)}, ArrowStream, {_text(columns)})"
            self._execute(f"INSERT INTO {table} {_settings(settings)} {source}", "Null", {})

    def close(self) -> None:
        """The folder is free when the last user has closed it."""
        with _opening:
            self.users -= 1
            if self.users > 0:
                return
            _open.pop(self.folder, None)
            self._release()

    def _release(self) -> None:
        with self._guard:
            sessions, self._sessions = self._sessions, []
        for session in sessions:
            session.close()
        self._lock_file.close()

    def _execute(self, sql: str, output: str, parameters: Mapping[str, str]) -> Any:
        if not hasattr(self._local, "session"):
            self._local.session = self._new_session()
        session = self._local.session
        try:
            return session.query(sql, output, params=dict(parameters))
        except RuntimeError as error:
            # What a failed query has written already would be the beginning of the next result of its session.
            del self._local.session
            self._drop_session(session)
            raise QueryFailed(_reason(error)) from error

    def _new_session(self) -> Any:
        try:
            session = OPEN_SESSION(str(self.folder))
        except RuntimeError as error:
            raise Conflict(f"the tables in {self.folder} cannot be opened: {_reason(error)}") from error
        with self._guard:
            self._sessions.append(session)
        return session

    def _drop_session(self, session: Any) -> None:
        with self._guard:
            if session in self._sessions:
                self._sessions.remove(session)
        session.close()


_open: dict[Path, ChdbEngine] = {}
_opening = threading.Lock()


def open_folder(folder: Path) -> ChdbEngine:
    """The engine of this process on the folder. Raises Conflict if the folder or the process has another one."""
    folder = folder.resolve()
    with _opening:
        if other := next((path for path in _open if path != folder), None):
            raise Conflict(f"this process has the tables in {other} open; one process can open one folder of tables")
        if folder not in _open:
            folder.mkdir(parents=True, exist_ok=True)
            _open[folder] = ChdbEngine(folder)
        _open[folder].users += 1
        return _open[folder]


def _forget_after_fork() -> None:
    """A child has the memory of the engine but not its threads."""
    _open.clear()


os.register_at_fork(after_in_child=_forget_after_fork)


def _lock(folder: Path) -> IO[str]:
    file = (folder / LOCK).open("a+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        owner = file.read().strip() or "unknown"
        file.close()
        raise Conflict(
            f"the tables in {folder} are open in another process (pid {owner}); one process at a time can use them: "
            "stop that process, or run the tasks that use tables on one worker"
        ) from None
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    return file


def _settings(values: Mapping[str, Any]) -> str:
    return "SETTINGS " + ", ".join(f"{name} = {_text(str(value))}" for name, value in values.items())


def _text(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _reason(error: RuntimeError) -> str:
    return str(error).replace("DB::Exception: ", "").strip()
