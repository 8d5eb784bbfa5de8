"""A connection and its actor."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from dagmaster.service.fleet import KnownFleet, read_fleet
from dagmaster.settings import Settings
from dagmaster.store.connect import Connection


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
