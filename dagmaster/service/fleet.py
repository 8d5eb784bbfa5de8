"""The active fleet: whether an orchestrator runs, and which tasks its workers can claim."""

from collections.abc import Sequence
from dataclasses import dataclass

from dagmaster.store.connect import Connection
from dagmaster.store.orchestrators import is_orchestrated
from dagmaster.store.workers import WorkerRow, list_workers


@dataclass(frozen=True, slots=True)
class KnownFleet:
    is_orchestrated: bool
    workers: Sequence[WorkerRow]

    def consumes(self, queue: str) -> bool:
        return any(queue in worker["queues"] for worker in self.workers)

    def takes(self, queue: str, handler: str) -> bool:
        """Whether any worker can claim such a task."""
        return any(
            queue in worker["queues"] and (worker["handlers"] is None or handler in worker["handlers"])
            for worker in self.workers
        )


async def read_fleet(conn: Connection, *, threshold_seconds: float) -> KnownFleet:
    workers = await list_workers(conn, status="active")
    return KnownFleet(await is_orchestrated(conn, threshold_seconds=threshold_seconds), workers)
