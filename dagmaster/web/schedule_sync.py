"""The schedules of the workflows that this server has loaded."""

from dagmaster.service.context import ServiceContext
from dagmaster.service.schedules import sync_schedules
from dagmaster.store.connect import Connection
from dagmaster.store.schedules import Synced
from dagmaster.web.services import Services


async def sync_catalog(
    conn: Connection, services: Services, *, prune: bool = False, actor: str | None = None
) -> Synced:
    """Update the schedules from the loaded workflows."""
    await services.learn(conn)
    context = ServiceContext(conn, services.settings, source_app="api", actor=actor)
    return await sync_schedules(context, services.catalog, services.contracts, prune=prune)
