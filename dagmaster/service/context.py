"""A connection, and on whose behalf it is used."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from dagmaster.service.fleet import KnownFleet, read_fleet
from dagmaster.settings import Settings
from dagmaster.store.connect import Connection


def _notified_by_the_database() -> None:
    """The statements notify; only an orchestrator in the same process can be woken sooner."""


@dataclass(frozen=True, slots=True)
class ServiceContext:
    """`source_app` and `actor` are for the timeline and the audit.

    `wake` tells an orchestrator in this process; `find_fleet` is for a server, which need not ask each time. The owner
    of a job is waited for no longer than `wait_seconds`, and not at all where there can be none. `owner_id` is the
    orchestrator that new jobs belong to, where only one may have them; `notifies` is false where `wake` is enough.
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
        """An owner acts within milliseconds; without one there is no point in waiting."""
        return self.wait_seconds if (await self.fleet()).is_orchestrated else 0.0
