"""Jobs: submit, list, show, steer."""

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response

from dagmaster.model.states import JOB_TERMINAL, JobStatus
from dagmaster.schemas.common import Page
from dagmaster.schemas.jobs import JobCreated, JobReply, JobSteered, JobSummary, Reason, SubmitJob
from dagmaster.store import job_control
from dagmaster.store import jobs as job_store
from dagmaster.web import views
from dagmaster.web.access import (
    OPERATORS,
    READERS_OF_OWN,
    SUBMITTERS,
    Admitted,
    Job,
    as_job_id,
    check_visible,
)
from dagmaster.web.answers import answer
from dagmaster.web.errors import documented
from dagmaster.web.paging import Limit, Offset, cut
from dagmaster.web.services import Conn, Given, Services
from dagmaster.web.submission import submit_job, warnings_for

router = APIRouter(prefix="/api/v1/jobs", tags=["jobs"])

WAIT_SECONDS = 3.0
MAX_NODES = 5000
NODE_BYTES = 500  # of a node without its output, more or less
STEERED: Any = {200: {"model": JobSteered}, 202: {"model": JobSteered}, **documented(404, 409)}


@router.post(
    "",
    status_code=201,
    response_model=JobCreated,
    responses={200: {"model": JobCreated}, **documented(404, 409, 413)},
    dependencies=[SUBMITTERS],
)
async def create_job(body: SubmitJob, caller: Admitted, services: Given, conn: Conn, response: Response) -> JobCreated:
    """Submit a job: 201 when it is new, 200 when the same was submitted before under the same idempotency key."""
    submitted, workflow = await submit_job(services, conn, caller, body)
    response.headers["Location"] = f"/api/v1/jobs/{submitted.job_id}"
    response.status_code = 201 if submitted.is_new else 200
    if not submitted.is_new:
        return JobCreated(**await job_store.get_job_head(conn, submitted.job_id), is_new=False)
    return JobCreated(
        job_id=str(submitted.job_id),
        workflow_id=workflow.workflow_id,
        workflow_version=workflow.version,
        status=JobStatus.PENDING,
        is_new=True,
        warnings=await warnings_for(services, conn, workflow),
    )


@router.get("", dependencies=[READERS_OF_OWN])
async def list_jobs(
    caller: Admitted,
    services: Given,
    conn: Conn,
    limit: Limit = 50,
    offset: Offset = 0,
    status: Annotated[str | None, Query(description="Only of this status, in any case of letters.")] = None,
    workflow_id: str | None = None,
    submitted_by: str | None = None,
    correlation_id: str | None = None,
    id_prefix: Annotated[
        str | None, Query(pattern=r"^[1-9][0-9]{0,18}$", description="Only those whose ids begin with these digits.")
    ] = None,
) -> Page[JobSummary]:
    """The newest jobs first."""
    rows = await job_store.list_jobs(
        conn,
        status=status,
        workflow_id=workflow_id,
        submitted_by=caller.name if caller.is_partner else submitted_by,
        correlation_id=correlation_id,
        id_prefix=id_prefix,
        limit=limit + 1,
        offset=offset,
    )
    tolerated = await services.node_counts.tolerated(conn, rows[:limit])
    return cut([views.job_summary(row, tolerated.get(row["job_id"], 0)) for row in rows], limit, offset)


@router.get("/{job_id}", response_model=JobReply, responses=documented(404), dependencies=[READERS_OF_OWN])
async def get_job(
    job_id: str,
    caller: Admitted,
    services: Given,
    conn: Conn,
    children: Annotated[bool, Query(description="The children of fan-outs too.")] = False,
    limit: Annotated[int, Query(ge=1, le=MAX_NODES, description="How many nodes at most.")] = MAX_NODES,
    offset: Offset = 0,
) -> JobReply | Response:
    """One job with its inputs, its result and its nodes.

    Outputs are shown while each has at most 64 KiB and all together 1 MiB; beyond that, each node shows its own.
    """
    job = await job_store.get_whole_job(conn, as_job_id(job_id), with_children=children, limit=limit + 1, offset=offset)
    check_visible(job, caller)
    known = (await services.node_counts.of(conn, [job]))[job["job_id"]]
    nodes = job["nodes"] or []
    job["nodes"] = nodes[:limit]
    size = len(job["input_params"]) + len(job["result_data"] or "") + len(nodes) * NODE_BYTES
    value = await job_store.returned_by(conn, job)
    return await answer(lambda: views.job_reply(job, known, value, has_more=len(nodes) > limit), size)


@router.post("/{job_id}/cancel", responses=STEERED, dependencies=[SUBMITTERS])
async def cancel_job(
    job: Job, caller: Admitted, services: Given, conn: Conn, response: Response, body: Reason | None = None
) -> JobSteered:
    """Cancel it: what has not begun is skipped, what runs is stopped. 202 when its owner has yet to act."""
    await job_control.request_cancel(conn, job["job_id"], actor=caller.name or None, reason=_reason(body))
    return await _await(services, conn, job, response, lambda now: now["status"] in JOB_TERMINAL)


@router.post("/{job_id}/pause", responses=STEERED, dependencies=[OPERATORS])
async def pause_job(
    job: Job, caller: Admitted, services: Given, conn: Conn, response: Response, body: Reason | None = None
) -> JobSteered:
    """Start nothing more of it; what runs may end."""
    await job_control.request_pause(conn, job["job_id"], actor=caller.name or None, reason=_reason(body))
    return await _await(services, conn, job, response, lambda now: now["paused_at"] is not None)


@router.post("/{job_id}/resume", responses=STEERED, dependencies=[OPERATORS])
async def resume_job(job: Job, caller: Admitted, services: Given, conn: Conn, response: Response) -> JobSteered:
    """Go on after a pause."""
    await job_control.request_resume(conn, job["job_id"], actor=caller.name or None)
    return await _await(services, conn, job, response, lambda now: now["paused_at"] is None)


@router.post("/{job_id}/retry", responses=STEERED, dependencies=[OPERATORS])
async def retry_job(job: Job, caller: Admitted, services: Given, conn: Conn, response: Response) -> JobSteered:
    """Try all of it again that has failed; what has completed is not run again."""
    await _request_retry(job, None, caller, services, conn)
    return await _await(services, conn, job, response, lambda now: now["version"] > job["version"])


@router.post("/{job_id}/nodes/{node_id}/retry", responses=STEERED, dependencies=[OPERATORS])
async def retry_node(
    job: Job, node_id: str, caller: Admitted, services: Given, conn: Conn, response: Response
) -> JobSteered:
    """Try a failed node again, and the job with it; one that waits for a retry is tried at once."""
    await _request_retry(job, node_id, caller, services, conn)
    is_failed = job["status"] == JobStatus.FAILED
    return await _await(services, conn, job, response, lambda now: not is_failed or now["version"] > job["version"])


async def _request_retry(job: Job, node_id: str | None, caller: Admitted, services: Given, conn: Conn) -> None:
    await job_control.request_retry(
        conn,
        job["job_id"],
        node_id,
        actor=caller.name or None,
        threshold_seconds=services.settings.orphan_threshold_seconds,
    )


async def _await(
    services: Services,
    conn: Conn,
    job: dict[str, Any],
    response: Response,
    holds: Callable[[dict[str, Any]], bool],
) -> JobSteered:
    """The owner acts within milliseconds; where there is none it makes no sense to wait."""
    is_orchestrated = (await services.fleet(conn)).is_orchestrated
    now = await job_control.until(conn, job["job_id"], holds, seconds=WAIT_SECONDS if is_orchestrated else 0)
    response.status_code = 200 if holds(now) else 202
    return JobSteered(
        job_id=str(now["job_id"]), status=now["status"], is_paused=now["paused_at"] is not None, is_done=holds(now)
    )


def _reason(body: Reason | None) -> str | None:
    return body.reason if body else None
