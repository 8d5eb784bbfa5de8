"""A shipped workflow on a fleet of its own, as a user runs it: one orchestrator, and workers that come and go."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.fleet import Role, started
from benchmarks.submitter import Submitter, open_submitter
from benchmarks.workflows import QUEUE
from dagmaster.authoring.yaml import QueueRules, load_workflow
from dagmaster.ids import JobId
from dagmaster.model.compile import compile_graph
from dagmaster.model.graph import Graph
from dagmaster.model.inputs import check_inputs
from dagmaster.store import jobs

WORKFLOWS = Path(__file__).parents[1] / "workflows"
POLL_SECONDS = 0.25
LIVE = ("pending", "running")
# A killed worker is noticed in seconds, not in the minute of the defaults: the wait is not what is measured.
IMPATIENT = {
    "DAGMASTER_WORKER_HEARTBEAT_INTERVAL_SECONDS": "2",
    "DAGMASTER_WORKER_LOST_AFTER_SECONDS": "10",
}


def shipped(name: str) -> Graph:
    return compile_graph(load_workflow(WORKFLOWS / f"{name}.yaml", queues=QueueRules(default_queue=QUEUE)))


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    while True:
        if await holds():
            return
        await asyncio.sleep(POLL_SECONDS)


@dataclass(slots=True)
class ShippedFleet:
    dsn: str
    user: Submitter

    @contextmanager
    def worker(self, concurrency: int = 1) -> Iterator[Role]:
        with started("worker", self.dsn, concurrency=concurrency, queue=QUEUE) as role:
            yield role

    async def submit(self, name: str, **inputs: Any) -> JobId:
        graph = shipped(name)
        [job_id] = await self.user.submit(graph, check_inputs(graph.workflow, inputs))
        return job_id

    async def has_ended(self, job_id: JobId) -> bool:
        [job] = await jobs.job_status(self.user.conn, [job_id])
        if job["status"] in LIVE:
            return False
        if job["status"] != "completed":
            raise RuntimeError(f"job {job_id} is {job['status']}: {job['error_message']}")
        return True

    async def end(self, job_id: JobId) -> None:
        await until(lambda: self.has_ended(job_id))

    async def node(self, job_id: JobId, node_id: str) -> dict[str, Any]:
        """Its row, with the seconds that its last attempt took."""
        cursor = await self.user.conn.execute(
            "SELECT *, extract(epoch FROM completed_at - started_at)::float AS seconds FROM dagapp.dag_node_states "
            "WHERE job_id = $1 AND node_id = $2",
            [job_id, node_id],
        )
        row = await cursor.fetchone()
        assert row is not None
        return row


@asynccontextmanager
async def shipped_fleet(dsn: str, folder: Path, handlers: str) -> AsyncIterator[ShippedFleet]:
    """An orchestrator. `folder` has the storage."""
    settings = {"DAGMASTER_DATA_DIR": str(folder), "BENCH_HANDLERS": handlers, **IMPATIENT}
    with patch.dict(os.environ, settings), ExitStack() as stack:
        stack.enter_context(started("orchestrator", dsn))
        async with open_submitter(dsn) as user:
            yield ShippedFleet(dsn, user)
