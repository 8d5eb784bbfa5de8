"""The graph of a job."""

from fastapi import APIRouter, Response

from dagmaster.errors import NotFound
from dagmaster.schemas.timeline import GraphDependency, GraphGroup, GraphReply
from dagmaster.store.dynamic_nodes import list_dependencies, list_groups
from dagmaster.store.events import last_event_of_job
from dagmaster.store.node_counts import count_folded
from dagmaster.store.nodes import view_graph
from dagmaster.web.access import READERS_OF_OWN, Job
from dagmaster.web.errors import documented
from dagmaster.web.graph_view import draw
from dagmaster.web.services import Conn, ServicesDep

router = APIRouter(prefix="/api/v1/jobs/{job_id}", tags=["timeline"])


@router.get("/graph", response_model=GraphReply, responses=documented(404), dependencies=[READERS_OF_OWN])
async def get_graph(job: Job, services: ServicesDep, conn: Conn) -> Response:
    """Get the graph of a job: nodes with their states, edges, and the groups and dependencies added at run time."""
    graph = await services.pinned.find(conn, job["workflow_hash"])
    if graph is None:
        raise NotFound(f"the pinned definition of job {job['job_id']} is not in dag_workflows")
    seen = await last_event_of_job(conn, job)  # Read first: a duplicate event is harmless, a missing one is not.
    rows = await view_graph(conn, job["job_id"])
    drawn = draw(job, graph, rows, await count_folded(conn, job["job_id"]), last_event_id=seen)
    drawn.groups = [GraphGroup(**row) for row in await list_groups(conn, job["job_id"])]
    drawn.dependencies = [GraphDependency(**row) for row in await list_dependencies(conn, job["job_id"])]
    # Encoded here: it may be large, and FastAPI would validate it twice more.
    return Response(drawn.model_dump_json(), media_type="application/json")
