"""The schedules of the workflows that this server has."""

from dagmaster.authoring.scheduled import check_prunable, find_scheduled
from dagmaster.store.connect import Connection
from dagmaster.store.schedules import Synced, sync_schedules
from dagmaster.web.services import Services


async def sync_catalog(
    conn: Connection, services: Services, *, prune: bool = False, actor: str | None = None
) -> Synced:
    """Make the schedules what the loaded workflows say."""
    await services.learn(conn)
    if prune:
        check_prunable(services.catalog)
    found = find_scheduled(services.catalog, services.settings, services.contracts)
    return await sync_schedules(
        conn,
        found.graphs,
        ended=found.ended,
        unready=found.unready,
        prune=prune,
        actor=actor,
        source_app="api",
    )
