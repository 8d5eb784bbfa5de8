"""The progress of jobs and nodes."""

from fastapi import APIRouter

from dagmaster.ids import NodeId
from dagmaster.model.outcome import NO_CHILDREN, outcome_of
from dagmaster.model.progress import percent_done, work_percent
from dagmaster.model.redact import redact
from dagmaster.schemas.nodes import CurrentTask, JobProgress, NodeProgress
from dagmaster.store import attempts as attempt_store
from dagmaster.store import nodes as node_store
from dagmaster.store.estimates import load_snapshot
from dagmaster.web import views
from dagmaster.web.access import READERS_OF_OWN, Job
from dagmaster.web.errors import documented
from dagmaster.web.services import Conn, ServicesDep

router = APIRouter(prefix="/api/v1/jobs/{job_id}", tags=["timeline"])


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
