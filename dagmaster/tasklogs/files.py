"""Task logs as files in one folder."""

import asyncio
import os
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Final
from urllib.parse import quote

from dagmaster.ids import JobId
from dagmaster.tasklogs.contract import READ_BYTES, LogUnavailable

FOLDER_MODE: Final = 0o700
FILE_MODE: Final = 0o600
MAX_NAME_BYTES: Final = 200
_PLAIN = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*")


def safe_name(task_id: str) -> str:
    """The id itself if it is a valid file name, else an escaped form; different ids stay different."""
    plain = bool(_PLAIN.fullmatch(task_id)) and ".." not in task_id
    name = task_id if plain else quote(task_id, safe="").replace(".", "%2E")
    if len(name) <= MAX_NAME_BYTES:
        return name
    digest = sha256(task_id.encode()).hexdigest()[:32]
    return f"{name[: MAX_NAME_BYTES - len(digest) - 1]}-{digest}"


class FileLogs:
    """Uses threads: a folder may be on a network, and tasks must not wait for each other's logs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def append(self, task_id: str, chunk: bytes) -> None:
        await asyncio.to_thread(self._append, task_id, chunk)

    async def read(self, task_id: str, offset: int = 0, limit: int = READ_BYTES) -> bytes:
        return await asyncio.to_thread(self._read, task_id, offset, limit)

    async def size(self, task_id: str) -> int | None:
        return await asyncio.to_thread(self._size, task_id)

    async def remove(self, task_ids: Sequence[str]) -> None:
        await asyncio.to_thread(self._unlink, [self._path(task_id) for task_id in task_ids])

    async def remove_jobs(self, job_ids: Collection[JobId]) -> None:
        await asyncio.to_thread(self._remove_jobs, {str(job_id) for job_id in job_ids})

    def path_of(self, task_id: str) -> str:
        return str(self._path(task_id).absolute())

    async def close(self) -> None:
        pass

    def _path(self, task_id: str) -> Path:
        return self._folder / f"{safe_name(task_id)}.log"

    def _append(self, task_id: str, chunk: bytes) -> None:
        path = self._path(task_id)
        with self._telling("written"):
            try:
                self._write(path, chunk)
            except FileNotFoundError:
                self._folder.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
                self._write(path, chunk)

    def _write(self, path: Path, chunk: bytes) -> None:
        """Write all or nothing: after a full disk the chunk is retried, and must not be stored twice."""
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            before = os.fstat(descriptor).st_size
            try:
                _write_all(descriptor, chunk)
            except OSError:
                with suppress(OSError):  # The first error is the one to report.
                    os.ftruncate(descriptor, before)
                raise
        finally:
            os.close(descriptor)

    def _read(self, task_id: str, offset: int, limit: int) -> bytes:
        with self._telling("read"), suppress(FileNotFoundError), self._path(task_id).open("rb") as file:
            file.seek(offset)
            return file.read(limit)
        return b""

    def _size(self, task_id: str) -> int | None:
        with self._telling("read"), suppress(FileNotFoundError):
            return self._path(task_id).stat().st_size
        return None

    def _remove_jobs(self, job_ids: Collection[str]) -> None:
        paths: list[Path] = []
        with self._telling("removed"), suppress(FileNotFoundError), os.scandir(self._folder) as entries:
            paths += [Path(entry.path) for entry in entries if _is_log_of(entry.name, job_ids)]
        self._unlink(paths)

    def _unlink(self, paths: Sequence[Path]) -> None:
        with self._telling("removed"):
            for path in paths:
                path.unlink(missing_ok=True)

    @contextmanager
    def _telling(self, verb: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise LogUnavailable(
                f"task logs cannot be {verb} in {self._folder}: {error.strerror or error}; set DAGMASTER_LOG_DIR to "
                "another folder"
            ) from error


def _write_all(descriptor: int, chunk: bytes) -> None:
    remaining = memoryview(chunk)
    while remaining:
        remaining = remaining[os.write(descriptor, remaining) :]


def _is_log_of(name: str, job_ids: Collection[str]) -> bool:
    return name.endswith(".log") and name.partition("_")[0] in job_ids
