"""Queues, their tasks and their workers."""

from fastapi import APIRouter

from dagmaster.authoring.preparation import queues_of
from dagmaster.schemas.fleet import QueueReply, QueuesReply
from dagmaster.store.queues import list_queues
from dagmaster.web.access import READERS
from dagmaster.web.services import Conn, Services, ServicesDep

router = APIRouter(prefix="/api/v1/queues", tags=["fleet"])


@router.get("/status", dependencies=[READERS])
async def queue_status(services: ServicesDep, conn: Conn) -> QueuesReply:
    """List the queues that have tasks or workers, or that a loaded workflow uses."""
    rows = await list_queues(conn, lost_after_seconds=services.settings.worker_lost_after_seconds)
    used = _used(services)
    queues = [QueueReply(**row, workflows=used.pop(row["queue"], [])) for row in rows]
    for queue, workflows in used.items():
        empty = {"depth": 0, "held": 0, "running": 0, "consumers": 0, "oldest_wait_seconds": None}
        queues.append(QueueReply(queue=queue, workflows=workflows, **empty))
    return QueuesReply(queues=sorted(queues, key=lambda queue: queue.queue))


def _used(services: Services) -> dict[str, list[str]]:
    used: dict[str, list[str]] = {}
    for name, workflow in sorted(services.catalog.workflows.items()):
        for queue in queues_of(workflow):
            used.setdefault(queue, []).append(name)
    return used
