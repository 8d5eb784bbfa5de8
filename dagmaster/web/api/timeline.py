"""The timeline of a job."""

from typing import Annotated

from fastapi import APIRouter, Query

from dagmaster.ids import NodeId
from dagmaster.model.timeline import event_types as types_of
from dagmaster.schemas.timeline import TimelineReply
from dagmaster.store.nodes import get_node_head
from dagmaster.web.access import READERS_OF_OWN, Job
from dagmaster.web.entries import timeline_of
from dagmaster.web.errors import documented
from dagmaster.web.paging import Limit
from dagmaster.web.services import Conn

router = APIRouter(prefix="/api/v1/jobs/{job_id}", tags=["timeline"])

Types = Annotated[str | None, Query(description="Only events of these types, separated by commas.")]
After = Annotated[int, Query(ge=0, lt=2**63, description="Only events after this event id.")]


@router.get("/timeline", responses=documented(404), dependencies=[READERS_OF_OWN])
async def get_timeline(
    job: Job, conn: Conn, event_types: Types = None, after: After = 0, limit: Limit = 100
) -> TimelineReply:
    """List the events of a job, oldest first, with a summary of all of them."""
    return await timeline_of(conn, job["job_id"], None, types_of(event_types), after=after, limit=limit)


@router.get("/nodes/{node_id}/timeline", responses=documented(404), dependencies=[READERS_OF_OWN])
async def get_node_timeline(
    job: Job, node_id: NodeId, conn: Conn, event_types: Types = None, after: After = 0, limit: Limit = 100
) -> TimelineReply:
    """List the events of a node, oldest first, with a summary of all of them."""
    await get_node_head(conn, job["job_id"], node_id)
    return await timeline_of(conn, job["job_id"], node_id, types_of(event_types), after=after, limit=limit)


router.add_api_route(
    "/nodes/{node_id}/events",
    get_node_timeline,
    name="get_node_events",
    responses=documented(404),
    dependencies=[READERS_OF_OWN],
)
