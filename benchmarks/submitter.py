"""The user of the measured fleet: submits jobs and waits until they are completed."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from time import perf_counter, sleep
from typing import Any

from dagmaster.ids import JobId
from dagmaster.model.graph import Graph
from dagmaster.store import jobs, submission
from dagmaster.store.connect import connect_hot
from dagmaster.store.hot_connection import HotConnection

OWNER_IS_ALIVE_SECONDS = 120.0
GIVE_UP_SECONDS = 300.0
LIVE = ("pending", "running")
LIVE_JOBS = b"SELECT count(*) AS jobs FROM dagapp.dag_jobs WHERE status IN ('pending', 'running')"
# Looking costs what is measured, so the first look comes late; but well before the quickest job so far would be done,
# so that a quicker one can be seen to be quicker.
WAIT_SHARE = 0.5


def look_seconds(expected_seconds: float) -> float:
    return min(max(expected_seconds * 0.01, 0.0005), 0.05)


@dataclass(slots=True)
class Submitter:
    conn: HotConnection

    async def submit(self, graph: Graph, inputs: Mapping[str, Any], count: int = 1) -> list[JobId]:
        new = [submission.NewJob(graph, inputs)] * count
        submitted = await submission.submit_many(self.conn, new, threshold_seconds=OWNER_IS_ALIVE_SECONDS)
        return [job.job_id for job in submitted]

    async def time_one(self, graph: Graph, inputs: Mapping[str, Any], expected_seconds: float = 0.0) -> float:
        """From before the submission until this user sees that the job is completed."""
        began = perf_counter()
        job_ids = await self.submit(graph, inputs)
        return await self.wait(job_ids, expected_seconds) - began

    async def wait(self, job_ids: Sequence[JobId], expected_seconds: float) -> float:
        """When it was seen that all have ended; raises unless all are completed."""
        deadline = perf_counter() + GIVE_UP_SECONDS
        await asyncio.sleep(expected_seconds * WAIT_SHARE)
        while await self._count_live_jobs():
            if perf_counter() > deadline:
                raise TimeoutError(f"{len(job_ids)} jobs were not done in {GIVE_UP_SECONDS:g} s")
            sleep(look_seconds(expected_seconds))  # noqa: ASYNC251 - the event loop's timers are too coarse
        seen = perf_counter()
        for job in await jobs.job_status(self.conn, job_ids):
            if job["status"] != "completed":
                raise RuntimeError(f"job {job['job_id']} is {job['status']}: {job['error_message']}")
        return seen

    async def _count_live_jobs(self) -> int:
        [row] = await self.conn.fetch_prepared(LIVE_JOBS, [])
        return int(row["jobs"])


@asynccontextmanager
async def open_submitter(dsn: str) -> AsyncIterator[Submitter]:
    async with await connect_hot(dsn, application="bench") as conn:
        yield Submitter(conn)
