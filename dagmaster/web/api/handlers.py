"""The handlers that workers have registered."""

from fastapi import APIRouter

from dagmaster.errors import UnknownHandler
from dagmaster.model.problems import did_you_mean
from dagmaster.schemas.common import Page
from dagmaster.schemas.fleet import HandlerOfFleet
from dagmaster.store.handlers import view_handlers
from dagmaster.web.access import READERS
from dagmaster.web.errors import documented
from dagmaster.web.paging import Limit, Offset, to_page
from dagmaster.web.services import Conn, ServicesDep

router = APIRouter(prefix="/api/v1/handlers", tags=["fleet"])


@router.get("", dependencies=[READERS])
async def list_registered_handlers(
    services: ServicesDep, conn: Conn, text: str | None = None, limit: Limit = 50, offset: Offset = 0
) -> Page[HandlerOfFleet]:
    """List registered handlers by name; `text` filters by a part of the name."""
    seconds = services.settings.worker_lost_after_seconds
    rows = await view_handlers(conn, lost_after_seconds=seconds, text=text, limit=limit + 1, offset=offset)
    return to_page([HandlerOfFleet(**row) for row in rows], limit, offset)


@router.get("/{name}", responses=documented(404), dependencies=[READERS])
async def get_registered_handler(name: str, services: ServicesDep, conn: Conn) -> HandlerOfFleet:
    """Get a handler with its contract and the workers that run it."""
    seconds = services.settings.worker_lost_after_seconds
    for row in await view_handlers(conn, lost_after_seconds=seconds, name=name, limit=1):
        return HandlerOfFleet(**row)
    await services.learn(conn)
    raise UnknownHandler(f"no worker has registered the handler {name!r}{did_you_mean(name, services.contracts)}")
