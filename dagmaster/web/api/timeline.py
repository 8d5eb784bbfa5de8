"""The timeline, graph and progress of a job, and why it is not running."""

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Query, Response

from dagmaster.explain.facts import Explanation as JobExplanation
from dagmaster.http.errors import documented
from dagmaster.ids import JobId, NodeId
from dagmaster.model.outcome import NO_CHILDREN, outcome_of
from dagmaster.model.progress import percent_done, work_percent
from dagmaster.model.redact import redact, redact_text
from dagmaster.model.timeline import event_types as types_of
from dagmaster.schemas.nodes import CurrentTask, JobProgress, NodeProgress
from dagmaster.schemas.system import Explanation
from dagmaster.schemas.timeline import GraphDependency, GraphGroup, GraphReply, TimelineReply, TimelineSummary
from dagmaster.store import attempts as attempt_store
from dagmaster.store import nodes as node_store
from dagmaster.store.connect import Connection
from dagmaster.store.dynamic_nodes import list_dependencies, list_groups
from dagmaster.store.estimates import load_snapshot
from dagmaster.store.events import list_events, summarise_events
from dagmaster.web import views
from dagmaster.web.access import READERS_OF_OWN, Job
from dagmaster.web.graph_view import draw, read_graph
from dagmaster.web.paging import Limit
from dagmaster.web.services import Conn, ServicesDep

router = APIRouter(prefix="/api/v1/jobs/{job_id}", tags=["timeline"])

Types = Annotated[str | None, Query(description="Only events of these types, separated by commas.")]
After = Annotated[int, Query(ge=0, lt=2**63, description="Only events after this event id.")]


@router.get("/timeline", responses=documented(404), dependencies=[READERS_OF_OWN])
async def get_timeline(
    job: Job, conn: Conn, event_types: Types = None, after: After = 0, limit: Limit = 100
) -> TimelineReply:
    """List the events of a job, oldest first, with a summary of all of them."""
    return await _timeline(conn, job["job_id"], None, types_of(event_types), after=after, limit=limit)


@router.get("/nodes/{node_id}/timeline", responses=documented(404), dependencies=[READERS_OF_OWN])
async def get_node_timeline(
    job: Job, node_id: NodeId, conn: Conn, event_types: Types = None, after: After = 0, limit: Limit = 100
) -> TimelineReply:
    """List the events of a node, oldest first, with a summary of all of them."""
    await node_store.get_node_head(conn, job["job_id"], node_id)
    return await _timeline(conn, job["job_id"], node_id, types_of(event_types), after=after, limit=limit)


router.add_api_route(
    "/nodes/{node_id}/events",
    get_node_timeline,
    name="get_node_events",
    responses=documented(404),
    dependencies=[READERS_OF_OWN],
)


async def _timeline(
    conn: Connection, job_id: JobId, node_id: NodeId | None, types: Sequence[str], *, after: int, limit: int
) -> TimelineReply:
    events = await list_events(conn, job_id, node_id=node_id, event_types=types, after=after, limit=limit + 1)
    summary = await summarise_events(conn, job_id, node_id)
    first, last = summary["first_event"], summary["last_event"]
    seconds = round((last - first).total_seconds(), 3) if first is not None else None
    has_more = len(events) > limit
    return TimelineReply(
        job_id=str(job_id),
        node_id=node_id,
        events=[views.timeline_entry(event) for event in events[:limit]],
        summary=TimelineSummary(**summary, duration_seconds=seconds),
        limit=limit,
        has_more=has_more,
        next_after=str(events[limit - 1]["event_id"]) if has_more else None,
    )


@router.get("/graph", response_model=GraphReply, responses=documented(404), dependencies=[READERS_OF_OWN])
async def get_graph(job: Job, services: ServicesDep, conn: Conn) -> Response:
    """Get the graph of a job: nodes with their states, edges, and the groups and dependencies added at run time."""
    drawn = draw(await read_graph(conn, services, job))
    drawn.groups = [GraphGroup(**row) for row in await list_groups(conn, job["job_id"])]
    drawn.dependencies = [GraphDependency(**row) for row in await list_dependencies(conn, job["job_id"])]
    # Encoded here: it may be large, and FastAPI would validate it twice more.
    return Response(drawn.model_dump_json(), media_type="application/json")


@router.get("/progress", responses=documented(404), dependencies=[READERS_OF_OWN])
async def get_progress(job: Job, conn: Conn, services: ServicesDep) -> JobProgress:
    """Get the progress of a job, its current tasks and its estimated end."""
    snapshot = await load_snapshot(conn, job["job_id"])
    estimate = await services.histories.estimate(conn, snapshot)
    tasks = await attempt_store.current_tasks(conn, job["job_id"])
    return JobProgress(
        job_id=str(job["job_id"]),
        workflow_id=job["workflow_id"],
        job_status=snapshot.job.status,
        overall_percent=percent_done(snapshot.job),
        work_percent=work_percent(snapshot.job),
        nodes=views.snapshot_counts(snapshot.job),
        current_tasks=[CurrentTask(**redact(task)) for task in tasks],
        estimated_completion=estimate.ends_at if estimate else None,
        estimate_basis=estimate.basis if estimate else None,
        overdue_seconds=estimate.overdue.total_seconds() if estimate else 0.0,
    )


@router.get("/nodes/{node_id}/progress", responses=documented(404), dependencies=[READERS_OF_OWN])
async def get_node_progress(job: Job, node_id: NodeId, conn: Conn, services: ServicesDep) -> NodeProgress:
    """Get the progress of a node: its attempt, last checkpoint and fan-out children."""
    row = await node_store.get_node_progress(conn, job["job_id"], node_id)
    children = (await services.node_counts.of(conn, [job]))[job["job_id"]].children.get(node_id, NO_CHILDREN)
    outcome = outcome_of(row["status"], children, row["ended_by"])
    return NodeProgress(**redact(row), outcome=outcome, children=views.counts_reply(children.counts))


@router.get("/explain", responses=documented(404), dependencies=[READERS_OF_OWN])
async def explain_job(job: Job, services: ServicesDep, conn: Conn) -> Explanation:
    """Explain why a job is not running, or how it ended."""
    return _explanation(job, None, await services.explain(conn, job["job_id"]))


@router.get("/nodes/{node_id}/explain", responses=documented(404), dependencies=[READERS_OF_OWN])
async def explain_node(job: Job, node_id: NodeId, services: ServicesDep, conn: Conn) -> Explanation:
    """Explain why a node is not running, or how it ended."""
    return _explanation(job, node_id, await services.explain(conn, job["job_id"], node_id))


def _explanation(job: Job, node_id: NodeId | None, explanation: JobExplanation) -> Explanation:
    return Explanation(
        job_id=str(job["job_id"]),
        node_id=node_id,
        kind=explanation.kind,
        sentence=redact_text(explanation.sentence),
        data=redact(explanation.data),
    )
