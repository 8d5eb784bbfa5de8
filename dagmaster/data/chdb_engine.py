"""ClickHouse inside this process (chdb), on a folder that no other process can use meanwhile."""

import fcntl
import os
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
from chdb.session import Session

from dagmaster.data.engine import INSERT_SETTINGS, NO_LIMITS, SETTINGS, Limits, folder_of, query_id
from dagmaster.data.sql import literal
from dagmaster.data.statements import CREATE_DATABASE, KILL_BY_COMMENT, SIZE, create_table, insert_select
from dagmaster.errors import Conflict, QueryFailed

LOCK = "dagmaster.lock"
OPEN_SESSION: Any = Session  # chdb is not typed
NOTHING: Mapping[str, str] = {}


class Folder:
    """The folder while this process has it open. Each statement has its own session: sessions are cheap."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.users = 0
        path.mkdir(parents=True, exist_ok=True)
        self._lock_file = _lock(path)
        self._anchor: Any = None
        try:
            self._anchor = self._session()  # The engine stops with its last session.
            self.execute(CREATE_DATABASE)
        except BaseException:
            self.close()
            raise

    def execute(
        self,
        sql: str,
        output: str = "Null",
        parameters: Mapping[str, str] = NOTHING,
        settings: Mapping[str, str] = NOTHING,
    ) -> bytes:
        with self._prepared(settings) as session:
            answer: bytes = session.query(sql, output, params=dict(parameters)).bytes()
            return answer

    def stream(
        self, sql: str, parameters: Mapping[str, str] = NOTHING, settings: Mapping[str, str] = NOTHING
    ) -> Iterator[pa.RecordBatch]:
        with (
            self._prepared(settings) as session,
            session.send_query(sql, "ArrowStream", params=dict(parameters)) as chunks,
        ):
            for chunk in chunks:
                with pa.ipc.open_stream(pa.py_buffer(chunk.bytes())) as reader:
                    yield from reader

    def kill(self, query_id: str) -> None:
        self.execute(KILL_BY_COMMENT, parameters={"id": query_id})

    def close(self) -> None:
        if self._anchor is not None:
            self._anchor.close()
        self._lock_file.close()

    @contextmanager
    def _prepared(self, settings: Mapping[str, str]) -> Iterator[Any]:
        session = self._session()
        try:
            if settings:
                listed = ", ".join(f"{name} = {literal(value)}" for name, value in settings.items())
                session.query(f"SET {listed}", "Null")
            yield session
        except RuntimeError as error:
            raise QueryFailed(str(error).replace("DB::Exception: ", "").strip()) from error
        finally:
            session.close()

    def _session(self) -> Any:
        try:
            return OPEN_SESSION(str(self.path))
        except RuntimeError as error:
            raise Conflict(f"the tables in {self.path} cannot be opened: {error}") from error


class ChdbEngine:
    def __init__(self, folder: Folder, limits: Limits) -> None:
        self.folder = folder
        self._settings = {**SETTINGS, **limits.settings()}
        self._is_closed = False

    def query(self, sql: str, parameters: Mapping[str, str]) -> pa.Table:
        answer = self.folder.execute(sql, "ArrowStream", parameters, self._reading())
        with pa.ipc.open_stream(pa.py_buffer(answer)) as reader:
            return reader.read_all()

    def batches(self, sql: str, parameters: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
        return self.folder.stream(sql, parameters, self._reading())

    def create(self, table: str, columns: str) -> None:
        self.folder.execute(create_table(table, columns))

    def insert(self, table: str, rows: pa.Table, token: str | None = None) -> None:
        settings = {**self._reading(), **INSERT_SETTINGS} | ({"insert_deduplication_token": token} if token else {})
        with tempfile.NamedTemporaryFile(suffix=".arrow", dir=self.folder.path) as file:
            with pa.ipc.new_stream(file, rows.schema) as writer:
                writer.write_table(rows)
            file.flush()
            self.folder.execute(insert_file(f"INSERT INTO {table}", file.name), settings=settings)

    def fill(self, table: str, columns: str, sql: str, parameters: Mapping[str, str]) -> None:
        self.folder.execute(f"TRUNCATE TABLE {table}")
        self.folder.execute(insert_select(table, columns, sql), parameters=parameters, settings=self._reading())

    def drop(self, table: str) -> None:
        self.folder.execute(f"DROP TABLE IF EXISTS {table} SYNC")

    def size_bytes(self, table: str) -> int:
        size: int = self.query(SIZE, {"t": table})["size"][0].as_py()
        return size

    def kill(self, query_id: str) -> None:
        self.folder.kill(query_id)

    def close(self) -> None:
        """The last user releases the folder."""
        with _opening:
            if self._is_closed:
                return
            self._is_closed = True
            self.folder.users -= 1
            if self.folder.users == 0 and _open.get(self.folder.path) is self.folder:
                del _open[self.folder.path]
                self.folder.close()

    def _reading(self) -> dict[str, str]:
        return {**self._settings, "log_comment": query_id()}


_open: dict[Path, Folder] = {}
_opening = threading.Lock()


def open_url(url: str, limits: Limits = NO_LIMITS) -> ChdbEngine:
    """Raises Conflict if another process has the folder, or this process has another folder."""
    path = folder_of(url)
    with _opening:
        if other := next((open_path for open_path in _open if open_path != path), None):
            raise Conflict(f"this process has the tables in {other} open; one process can open one folder of tables")
        if path not in _open:
            _open[path] = Folder(path)
        _open[path].users += 1
        return ChdbEngine(_open[path], limits)


def insert_file(insert: str, path: str) -> str:
    """The statement that inserts the rows of an Arrow stream."""
    return f"{insert} FROM INFILE {literal(path)} FORMAT ArrowStream"


# A forked child has the engine's memory but not its threads.
os.register_at_fork(after_in_child=_open.clear)


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
            "stop that process, or let all processes share them with DAGMASTER_DATA_URL=service:///folder"
        ) from None
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    return file
