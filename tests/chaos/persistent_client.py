"""A client that submits and controls jobs and retries while PostgreSQL is away."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar

from plans import LEASE_SECONDS, PlannedJob
from processes import new_job

from dagmaster.errors import Conflict, DatabaseUnavailable, JobEnded
from dagmaster.store import submission
from dagmaster.store.connect import LOST, Connection, opened
from dagmaster.store.job_control import request_cancel, request_pause, request_resume

AGAIN_SECONDS = 0.05
T = TypeVar("T")


class PersistentClient:
    """Remembers the job of each plan, and which jobs it has cancelled."""

    def __init__(self, dsn: str, key: str) -> None:
        """`key` distinguishes the jobs of this client from those of others."""
        self.job_ids: dict[int, int] = {}
        self.cancelled: set[int] = set()
        self._dsn, self._key = dsn, key

    def submit(self, job: PlannedJob) -> int:
        """A retry after a lost response returns the same job."""
        new = new_job(job.shape, job.inputs, priority=job.priority, idempotency_key=f"{self._key}-{job.number}")

        async def submit(conn: Connection) -> submission.Submitted:
            return await submission.submit(conn, new, threshold_seconds=LEASE_SECONDS)

        self.job_ids[job.number] = job_id = self._insist(submit).job_id
        return job_id

    def cancel(self, job_id: int) -> None:
        self.cancelled.add(job_id)
        self._want(job_id, request_cancel, reason="a storm")

    def pause(self, job_id: int) -> None:
        self._want(job_id, request_pause, reason="a storm")

    def resume(self, job_id: int) -> None:
        self._want(job_id, request_resume)

    def _want(self, job_id: int, wish: Callable[..., Awaitable[Any]], **details: Any) -> None:
        """It may be too late for that, or too early."""

        async def ask(conn: Connection) -> None:
            with suppress(JobEnded, Conflict):
                await wish(conn, job_id, actor="chaos", **details)

        self._insist(ask)

    def _insist(self, ask: Callable[[Connection], Awaitable[T]]) -> T:
        async def run() -> T:
            async with opened(self._dsn, application="chaos") as conn:
                return await ask(conn)

        while True:
            try:
                return asyncio.run(run())
            except (*LOST, DatabaseUnavailable):
                time.sleep(AGAIN_SECONDS)
