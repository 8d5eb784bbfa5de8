"""A connection with its actor, and the fleet that processes the jobs of its database."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from dagmaster.settings import Settings
from dagmaster.store.connect import Connection
from dagmaster.store.orchestrators import is_orchestrated
from dagmaster.store.workers import WorkerRow, list_workers


@dataclass(frozen=True, slots=True)
class KnownFleet:
    """Whether an orchestrator runs, and which tasks the active workers can claim."""

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


def _notified_by_the_database() -> None:
    """The statements notify; only an orchestrator in the same process can be woken faster."""


@dataclass(frozen=True, slots=True)
class ServiceContext:
    """`source_app` and `actor` are for the timeline and the audit log.

    `wake` wakes an orchestrator in this process; `find_fleet` lets a server use a cached fleet. Commands wait for the
    owner of a job up to `wait_seconds`, and not at all if there is no orchestrator. `owner_id` is the orchestrator that
    owns new jobs, if only one may; `notifies` is false if `wake` is enough.
    """

    conn: Connection
    settings: Settings
    source_app: str = "cli"
    actor: str | None = None
    wait_seconds: float = 10.0
    wake: Callable[[], None] = _notified_by_the_database
    find_fleet: Callable[[Connection], Awaitable[KnownFleet]] | None = None
    owner_id: str | None = None
    notifies: bool = True

    async def fleet(self) -> KnownFleet:
        if self.find_fleet is not None:
            return await self.find_fleet(self.conn)
        return await read_fleet(self.conn, threshold_seconds=self.settings.orphan_threshold_seconds)

    async def patience_seconds(self) -> float:
        """An owner responds within milliseconds; without one, waiting is pointless."""
        return self.wait_seconds if (await self.fleet()).is_orchestrated else 0.0
