"""Logs in object storage: S3, Azure, Google Cloud, or anything else that obstore can reach."""

from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from importlib import import_module
from typing import Any, Final

from dagmaster.errors import Misconfigured
from dagmaster.ids import JobId
from dagmaster.tasklogs.contract import READ_BYTES, LogUnavailable
from dagmaster.tasklogs.files import safe_name

RETRY_SECONDS: Final = 30
RETRIES: Final = 3
KNOWN_ENDS: Final = 10_000
REMOVE_AT_ONCE: Final = 1000


class ObjectLogs:
    """Objects cannot grow, so a log is a sequence of them, `JOB/TASK/OFFSET`, in the order of their names."""

    def __init__(self, url: str) -> None:
        try:
            self._obstore, stores = import_module("obstore"), import_module("obstore.store")
            self._errors = import_module("obstore.exceptions").BaseError
        except ImportError as error:
            raise Misconfigured(
                "logs in object storage need obstore: install it with `pip install 'dagmaster[objects]'`"
            ) from error
        self._url = url.rstrip("/")
        self._store = self._open(stores)
        # The end of each log that this process writes; unknown offsets are looked up.
        self._ends: dict[str, int] = {}

    def _open(self, stores: Any) -> Any:
        # Everything else comes from the environment: AWS_..., AZURE_..., GOOGLE_...
        retries = {"max_retries": RETRIES, "retry_timeout": timedelta(seconds=RETRY_SECONDS)}
        options: dict[str, Any] = {"retry_config": retries}
        if self._url.startswith("file://"):
            options = {"mkdir": True}
        try:
            return stores.from_url(self._url, **options)
        except (self._errors, ValueError, OSError) as error:
            raise Misconfigured(
                f"DAGMASTER_LOG_URL should look like s3://bucket/folder, az://container/folder, "
                f"gs://bucket/folder or file:///folder: {_first_line(error)}"
            ) from error

    async def append(self, task_id: str, chunk: bytes) -> None:
        end = self._ends.pop(task_id, None)
        if end is None:
            end = await self.size(task_id) or 0
        # Kept even if the response is lost: the same piece is then written to the same place again.
        self._ends[task_id] = end
        if len(self._ends) > KNOWN_ENDS:
            del self._ends[next(iter(self._ends))]
        async with self._telling("written"):
            await self._obstore.put_async(self._store, f"{_prefix(task_id)}/{end:012d}", chunk)
        self._ends[task_id] = end + len(chunk)

    async def read(self, task_id: str, offset: int = 0, limit: int = READ_BYTES) -> bytes:
        content = bytearray()
        async with self._telling("read"):
            for path, start, size in await self._pieces(task_id):
                first, last = max(offset - start, 0), min(offset + limit - start, size)
                if first < last:
                    content += await self._obstore.get_range_async(self._store, path, start=first, end=last)
        return bytes(content)

    async def size(self, task_id: str) -> int | None:
        async with self._telling("read"):
            pieces = await self._pieces(task_id)
        return pieces[-1][1] + pieces[-1][2] if pieces else None

    async def remove(self, task_ids: Sequence[str]) -> None:
        for task_id in task_ids:
            self._ends.pop(task_id, None)
            await self._remove_below(_prefix(task_id))

    async def remove_jobs(self, job_ids: Collection[JobId]) -> None:
        for job_id in job_ids:
            await self._remove_below(str(job_id))

    def path_of(self, task_id: str) -> str:
        return f"{self._url}/{_prefix(task_id)}"

    async def close(self) -> None:
        self._ends.clear()

    async def _pieces(self, task_id: str) -> list[tuple[str, int, int]]:
        """Path, first byte and size of each piece, in order."""
        pieces = []
        async for some in self._obstore.list(self._store, prefix=_prefix(task_id)):
            pieces += [(entry["path"], int(entry["path"].rpartition("/")[2]), entry["size"]) for entry in some]
        return sorted(pieces, key=lambda piece: piece[1])

    async def _remove_below(self, prefix: str) -> None:
        async with self._telling("removed"):
            async for some in self._obstore.list(self._store, prefix=prefix, chunk_size=REMOVE_AT_ONCE):
                await self._obstore.delete_async(self._store, [entry["path"] for entry in some])

    @asynccontextmanager
    async def _telling(self, verb: str) -> AsyncIterator[None]:
        try:
            yield
        except (self._errors, OSError) as error:
            raise LogUnavailable(
                f"task logs cannot be {verb} in {self._url} (DAGMASTER_LOG_URL): {_first_line(error)}"
            ) from error


def _prefix(task_id: str) -> str:
    """Below a folder of the job: storage lists folders, not prefixes of names."""
    name = safe_name(task_id)
    return f"{name.partition('_')[0]}/{name}"


def _first_line(error: Exception) -> str:
    """The rest of the message is for debugging the library."""
    return str(error).partition("\n")[0]
