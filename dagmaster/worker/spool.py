"""Reports that were not accepted yet: in memory, and on disk where they survive the death of the worker."""

import fcntl
import logging
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any

import orjson

from dagmaster.errors import Misconfigured
from dagmaster.ids import TaskId
from dagmaster.queues.contract import TaskReport
from dagmaster.snowflakes import new_id

log = logging.getLogger(__name__)

LOCK = ".lock"
# A larger transaction would delay later reports, and cost as much memory at each retry.
MAX_BYTES = 16 * 1024 * 1024
KEPT, UNREADABLE, UNFINISHED = ".json", ".unreadable", ".new"


def spool_folder(data_dir: Path, url: str, key: str | None) -> Path:
    """One folder per server and key: reports for one server mean nothing to another."""
    return data_dir / "spool" / sha256(f"{url}\n{key or ''}".encode()).hexdigest()[:16]


class Spool:
    """One file per report, until it is accepted. Each process has a subfolder that it locks while it lives, and adopts
    those of dead processes.
    """

    def __init__(self, folder: Path) -> None:
        self._parent = folder
        self._own = folder / str(new_id())
        self._warned_of: set[str] = set()
        try:
            folder.mkdir(0o700, parents=True, exist_ok=True)
            with self._adopting():
                self._own.mkdir(0o700)
                self._lock = _locked(self._own / LOCK)
        except OSError as error:
            raise Misconfigured(
                f"cannot store results in {folder}: {error.strerror}; choose another folder with DAGMASTER_DATA_DIR"
            ) from error

    def add(self, report: TaskReport) -> None:
        """Write to disk before returning. If the disk is full, the report stays in memory only."""
        with self._warning_once("cannot store results on disk, keeping them in memory"):
            self._write(self._path(report.task_id), _encode(report))

    def remove(self, task_ids: Sequence[TaskId]) -> None:
        """Reports that cannot be removed are sent again by the next process, which does no harm."""
        with self._warning_once("cannot remove accepted results from disk"):
            for task_id in task_ids:
                self._path(task_id).unlink(missing_ok=True)

    @contextmanager
    def _warning_once(self, trouble: str) -> Iterator[None]:
        """Warn of a failing disk once, until it works again."""
        try:
            yield
            self._warned_of.discard(trouble)
        except OSError as error:
            if trouble not in self._warned_of:
                log.warning("%s: %s", trouble, error)
            self._warned_of.add(trouble)

    def load(self) -> list[TaskReport]:
        """The reports of this process and of dead ones that were not accepted."""
        with self._adopting():
            for folder in self._parent.iterdir():
                if folder.is_dir() and folder != self._own:
                    self._adopt(folder)
        return [report for path in sorted(self._own.glob(f"*{KEPT}")) if (report := _read(path)) is not None]

    def close(self) -> None:
        """Release the folder; the next process adopts it."""
        os.close(self._lock)

    def _path(self, task_id: TaskId) -> Path:
        """A file name that is safe for any task id."""
        return self._own / (sha256(task_id.encode()).hexdigest()[:32] + KEPT)

    def _write(self, path: Path, content: bytes) -> None:
        unfinished = path.with_suffix(UNFINISHED)
        with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        unfinished.rename(path)
        _sync(self._own)

    @contextmanager
    def _adopting(self) -> Iterator[None]:
        """A lock, so that a folder is either being created or being adopted."""
        descriptor = os.open(self._parent / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _adopt(self, folder: Path) -> None:
        try:
            lock = _locked(folder / LOCK)
        except BlockingIOError:
            return  # Its process is alive.
        try:
            for path in (*folder.glob(f"*{KEPT}"), *folder.glob(f"*{UNREADABLE}")):
                path.rename(self._own / path.name)
            _sync(self._own)
            shutil.rmtree(folder)
        finally:
            os.close(lock)


class Outbox:
    """Reports in order of arrival. With a spool they survive the process."""

    def __init__(self, spool: Spool | None = None) -> None:
        self._spool = spool
        self._reports: list[TaskReport] = []
        self._bytes = 0

    def __bool__(self) -> bool:
        return bool(self._reports)

    @property
    def is_full(self) -> bool:
        """Whether more tasks would only add to the backlog."""
        return self._bytes >= MAX_BYTES

    def first(self, max_bytes: int = MAX_BYTES) -> list[TaskReport]:
        """As many reports as fit into one transaction, at least one if there is any. Small ones overtake large ones."""
        selected: list[TaskReport] = []
        for report in self._reports:
            if (size := _size(report)) <= max_bytes:
                selected.append(report)
                max_bytes -= size
        return selected or self._reports[:1]

    def task_ids(self) -> Iterable[TaskId]:
        return (report.task_id for report in self._reports)

    def recover(self) -> None:
        """Add the reports that earlier processes left in the spool."""
        if self._spool is not None:
            for report in self._spool.load():
                self._keep(report)

    def add(self, report: TaskReport) -> None:
        if self._spool is not None:
            self._spool.add(report)
        self._keep(report)

    def remove(self, reports: Sequence[TaskReport]) -> None:
        """Remove accepted reports."""
        taken = {id(report) for report in reports}
        self._reports = [report for report in self._reports if id(report) not in taken]
        self._bytes -= sum(map(_size, reports))
        if self._spool is not None and reports:
            self._spool.remove([report.task_id for report in reports])

    def _keep(self, report: TaskReport) -> None:
        self._reports.append(report)
        self._bytes += _size(report)


def _size(report: TaskReport) -> int:
    return len(report.output or b"")


def _locked(path: Path) -> int:
    """Lock a file while the descriptor is open. Raises BlockingIOError when another process holds it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _sync(folder: Path) -> None:
    """Make a new file name durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _encode(report: TaskReport) -> bytes:
    """The output as a string, so that its JSON survives byte for byte."""
    output = report.output.decode() if report.output is not None else None
    return orjson.dumps({**asdict(report), "output": output}, default=str, option=orjson.OPT_NON_STR_KEYS)


def _read(path: Path) -> TaskReport | None:
    try:
        return _decode(orjson.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        aside = path.with_suffix(UNREADABLE)
        log.warning("cannot read a spooled result, moved it to %s: %s", aside, error)
        path.rename(aside)
        return None


def _decode(record: dict[str, Any]) -> TaskReport:
    output = record["output"].encode() if record["output"] is not None else None
    return TaskReport(**{**record, "output": output, "error_types": tuple(record["error_types"])})
