"""A job as a drawing."""

from fastapi import APIRouter

from dagmaster.model.workflow import Workflow
from dagmaster.schemas.timeline import GraphReply
from dagmaster.store import jobs as job_store
from dagmaster.store.viewing import view_graph
from dagmaster.web.access import READERS_OF_OWN, Job
from dagmaster.web.drawing import draw
from dagmaster.web.errors import documented
from dagmaster.web.services import Conn

router = APIRouter(prefix="/api/v1/jobs/{job_id}", tags=["timeline"])


@router.get("/graph", responses=documented(404), dependencies=[READERS_OF_OWN])
async def get_graph(job: Job, conn: Conn) -> GraphReply:
    """The nodes with their states, and the edges: live, dead, or not yet decided."""
    definitions = await job_store.load_definitions(conn, [job["workflow_hash"]])
    workflow = Workflow.model_validate(definitions[job["workflow_hash"]])
    rows = await view_graph(conn, job["job_id"])
    return draw(job, workflow, rows, await job_store.count_nodes(conn, job["job_id"]))
