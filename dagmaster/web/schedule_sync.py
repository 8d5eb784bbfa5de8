"""The schedules of the workflows that this server has."""

from dagmaster.service.context import ServiceContext
from dagmaster.service.schedules import sync_schedules
from dagmaster.store.connect import Connection
from dagmaster.store.schedules import Synced
from dagmaster.web.services import Services


async def sync_catalog(
    conn: Connection, services: Services, *, prune: bool = False, actor: str | None = None
) -> Synced:
    """Make the schedules what the loaded workflows say."""
    await services.learn(conn)
    context = ServiceContext(conn, services.settings, source_app="api", actor=actor)
    return await sync_schedules(context, services.catalog, services.contracts, prune=prune)
