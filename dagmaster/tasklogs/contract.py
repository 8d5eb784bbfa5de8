"""The protocol of storage for task logs."""

from collections.abc import Collection, Sequence
from typing import Final, Protocol

from dagmaster.errors import Unavailable
from dagmaster.ids import JobId

READ_BYTES: Final = 1024 * 1024


class LogUnavailable(Unavailable):
    """Task logs cannot be written or read here. No task fails because of it."""


class LogWriter(Protocol):
    """One log for each attempt, which only its worker writes. All methods but `path_of` may raise LogUnavailable."""

    async def append(self, task_id: str, chunk: bytes) -> None: ...

    def path_of(self, task_id: str) -> str:
        """The location for people; it is stored with the attempt."""


class TaskLogs(LogWriter, Protocol):
    """Logs that can be read here, too."""

    async def read(self, task_id: str, offset: int = 0, limit: int = READ_BYTES) -> bytes:
        """Empty after the end, and while there is no log."""

    async def size(self, task_id: str) -> int | None:
        """None if there is no log."""

    async def remove(self, task_ids: Sequence[str]) -> None:
        """Remove the existing logs among these."""

    async def remove_jobs(self, job_ids: Collection[JobId]) -> None:
        """Remove all logs of these jobs that are within reach."""

    async def close(self) -> None: ...
