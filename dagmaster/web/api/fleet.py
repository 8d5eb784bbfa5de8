"""Queues, and the handlers that workers have registered."""

from fastapi import APIRouter

from dagmaster.authoring.preparation import queues_of
from dagmaster.errors import UnknownHandler
from dagmaster.http.errors import documented
from dagmaster.model.problems import did_you_mean
from dagmaster.schemas.common import Page
from dagmaster.schemas.fleet import HandlerOfFleet, QueueReply, QueuesReply
from dagmaster.store.handlers import view_handlers
from dagmaster.store.queues import list_queues
from dagmaster.web.access import READERS
from dagmaster.web.paging import Limit, Offset, to_page
from dagmaster.web.services import Conn, ServicesDep

router = APIRouter(prefix="/api/v1", tags=["fleet"])


@router.get("/queues/status", dependencies=[READERS])
async def queue_status(services: ServicesDep, conn: Conn) -> QueuesReply:
    """List the queues that have tasks or workers, or that a loaded workflow uses."""
    rows = await list_queues(conn, lost_after_seconds=services.settings.worker_lost_after_seconds)
    used = services.workflows_by(queues_of)
    queues = [QueueReply(**row, workflows=used.pop(row["queue"], [])) for row in rows]
    for queue, workflows in used.items():
        empty = {"depth": 0, "held": 0, "running": 0, "consumers": 0, "oldest_wait_seconds": None}
        queues.append(QueueReply(queue=queue, workflows=workflows, **empty))
    return QueuesReply(queues=sorted(queues, key=lambda queue: queue.queue))


@router.get("/handlers", dependencies=[READERS])
async def list_registered_handlers(
    services: ServicesDep, conn: Conn, text: str | None = None, limit: Limit = 50, offset: Offset = 0
) -> Page[HandlerOfFleet]:
    """List registered handlers by name; `text` filters by a part of the name."""
    seconds = services.settings.worker_lost_after_seconds
    rows = await view_handlers(conn, lost_after_seconds=seconds, text=text, limit=limit + 1, offset=offset)
    return to_page([HandlerOfFleet(**row) for row in rows], limit, offset)


@router.get("/handlers/{name}", responses=documented(404), dependencies=[READERS])
async def get_registered_handler(name: str, services: ServicesDep, conn: Conn) -> HandlerOfFleet:
    """Get a handler with its contract and the workers that run it."""
    seconds = services.settings.worker_lost_after_seconds
    for row in await view_handlers(conn, lost_after_seconds=seconds, name=name, limit=1):
        return HandlerOfFleet(**row)
    await services.learn(conn)
    raise UnknownHandler(f"no worker has registered the handler {name!r}{did_you_mean(name, services.contracts)}")
