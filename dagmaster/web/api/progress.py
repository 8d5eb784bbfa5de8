"""How far a job is."""

from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter

from dagmaster.model.redact import redact
from dagmaster.model.states import JobStatus
from dagmaster.schemas.jobs import NodeCounts
from dagmaster.schemas.nodes import CurrentTask, JobProgress, NodeProgress
from dagmaster.store import progress
from dagmaster.store.jobs import count_nodes
from dagmaster.web import views
from dagmaster.web.access import READERS_OF_OWN, Job
from dagmaster.web.errors import documented
from dagmaster.web.services import Conn

router = APIRouter(prefix="/api/v1/jobs/{job_id}", tags=["timeline"])


@router.get("/progress", responses=documented(404), dependencies=[READERS_OF_OWN])
async def get_progress(job: Job, conn: Conn) -> JobProgress:
    """How much is done, what is being done, and when it may be over."""
    counts = views.node_counts(await count_nodes(conn, job["job_id"]))
    tasks = await progress.current_tasks(conn, job["job_id"])
    percent = _percent(counts)
    return JobProgress(
        job_id=str(job["job_id"]),
        workflow_id=job["workflow_id"],
        job_status=job["status"],
        overall_percent=percent,
        nodes=counts,
        current_tasks=[CurrentTask(**redact(task)) for task in tasks],
        estimated_completion=_estimate(job, percent),
    )


@router.get("/nodes/{node_id}/progress", responses=documented(404), dependencies=[READERS_OF_OWN])
async def get_node_progress(job: Job, node_id: str, conn: Conn) -> NodeProgress:
    """How far one node is: its attempt, its last checkpoint, and the children of a fan-out."""
    row = await progress.node_progress(conn, job["job_id"], node_id)
    counts = [one for one in await count_nodes(conn, job["job_id"]) if one["parent_node_id"] == node_id]
    return NodeProgress(**redact(row), children=views.node_counts(counts))


def _percent(counts: NodeCounts) -> float:
    return round(100 * (counts.completed + counts.skipped) / counts.total, 1) if counts.total else 0.0


def _estimate(job: dict[str, Any], percent: float) -> datetime | None:
    """If it goes on as it did so far."""
    if job["status"] != JobStatus.RUNNING or job["started_at"] is None or not percent:
        return None
    now = datetime.now(UTC)
    remaining: datetime = now + (now - job["started_at"]) * (100 / percent - 1)
    return remaining
