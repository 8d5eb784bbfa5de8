"""Submit, list, show and control jobs, add tasks to them, and send them signals and decisions."""

from dataclasses import asdict
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Query, Response

from dagmaster.authoring.implicit import default_queue
from dagmaster.handlers import Handler
from dagmaster.http.errors import documented
from dagmaster.ids import NodeId
from dagmaster.model.added_nodes import added_id
from dagmaster.schemas.common import Page
from dagmaster.schemas.dynamic_nodes import AddTasks, NewTask, TasksAccepted
from dagmaster.schemas.jobs import JobCreated, JobReply, JobRetried, JobSteered, JobSummary, Reason, RetryJob, SubmitJob
from dagmaster.schemas.signals import Decide, DecisionReply, SendSignal, SignalReply
from dagmaster.service import contract
from dagmaster.service.context import ServiceContext
from dagmaster.service.contract import Cancel, JobChange, Pause, Resume, Retry, SubmitRequest
from dagmaster.service.job_control import control_job
from dagmaster.service.submission import submit
from dagmaster.snowflakes import new_id
from dagmaster.store import jobs as job_store
from dagmaster.store.dynamic_nodes import add_to_job, until_added
from dagmaster.web import views
from dagmaster.web.access import OPERATORS, READERS_OF_OWN, SUBMITTERS, Admitted, Caller, Job, as_job_id, check_visible
from dagmaster.web.paging import Limit, Offset, to_page
from dagmaster.web.service_context import Context
from dagmaster.web.services import Conn, ServicesDep

router = APIRouter(prefix="/api/v1/jobs", tags=["jobs"])

MAX_NODES = 5000
NODE_BYTES = 500  # approximate size of a node without its output
RETRIED: Any = {200: {"model": JobRetried}, 202: {"model": JobRetried}, **documented(404, 409)}
STEERED: Any = {200: {"model": JobSteered}, 202: {"model": JobSteered}, **documented(404, 409)}
DECIDED: Any = {200: {"model": DecisionReply}, 202: {"model": DecisionReply}, **documented(404, 409)}


@router.post(
    "",
    status_code=201,
    response_model=JobCreated,
    responses={200: {"model": JobCreated}, **documented(404, 409, 413)},
    dependencies=[SUBMITTERS],
)
async def create_job(
    body: SubmitJob, caller: Admitted, services: ServicesDep, context: Context, response: Response
) -> JobCreated:
    """Submit a job: 201 if it is new, 200 if it was already submitted with the same idempotency key."""
    await services.learn(context.conn)
    result = await submit(context, services.definitions, submit_request_of(body, caller))
    response.headers["Location"] = f"/api/v1/jobs/{result.job_id}"
    response.status_code = 201 if result.is_new else 200
    return JobCreated.model_validate({**asdict(result), "job_id": str(result.job_id)})


def submit_request_of(body: SubmitJob, caller: Caller) -> SubmitRequest:
    return SubmitRequest(
        body.workflow_id,
        body.input_params,
        priority=body.priority,
        # A partner's jobs are identified by its key: partners cannot submit under another name.
        submitted_by=caller.name if caller.is_partner else body.submitted_by or caller.name,
        correlation_id=body.correlation_id,
        idempotency_key=body.idempotency_key,
        callback_url=body.callback_url,
        metadata=body.metadata,
    )


@router.get("", dependencies=[READERS_OF_OWN])
async def list_jobs(
    caller: Admitted,
    services: ServicesDep,
    conn: Conn,
    limit: Limit = 50,
    offset: Offset = 0,
    status: Annotated[str | None, Query(description="Only jobs with this status; case-insensitive.")] = None,
    workflow_id: str | None = None,
    submitted_by: str | None = None,
    correlation_id: str | None = None,
    id_prefix: Annotated[
        str | None, Query(pattern=r"^[1-9][0-9]{0,18}$", description="Only jobs whose ids begin with these digits.")
    ] = None,
) -> Page[JobSummary]:
    """List jobs, newest first."""
    where = job_store.JobFilter(
        job_store.statuses_of(status),
        workflow_id,
        submitted_by=caller.name if caller.is_partner else submitted_by,
        correlation_id=correlation_id,
        id_prefix=id_prefix,
    )
    rows = await job_store.list_jobs(conn, where, limit=limit + 1, offset=offset)
    tolerated = await services.node_counts.tolerated(conn, rows[:limit])
    return to_page([views.job_summary(row, tolerated.get(row["job_id"], 0)) for row in rows], limit, offset)


@router.get("/{job_id}", response_model=JobReply, responses=documented(404), dependencies=[READERS_OF_OWN])
async def get_job(
    job_id: str,
    caller: Admitted,
    services: ServicesDep,
    conn: Conn,
    children: Annotated[bool, Query(description="Include the children of fan-outs.")] = False,
    limit: Annotated[int, Query(ge=1, le=MAX_NODES, description="Maximum number of nodes.")] = MAX_NODES,
    offset: Offset = 0,
) -> JobReply | Response:
    """Get a job with its inputs, result and nodes.

    Includes outputs of up to 64 KiB each and 1 MiB in total; get larger outputs from the node.
    """
    job = await job_store.get_whole_job(conn, as_job_id(job_id), with_children=children, limit=limit + 1, offset=offset)
    check_visible(job, caller)
    counts = (await services.node_counts.of(conn, [job]))[job["job_id"]]
    nodes = job["nodes"] or []
    job["nodes"] = nodes[:limit]
    size = len(job["input_params"]) + len(job["result_data"] or "") + len(nodes) * NODE_BYTES
    value = await job_store.returned_by(conn, job)
    return await views.answer(lambda: views.job_reply(job, counts, value, has_more=len(nodes) > limit), size)


@router.post("/{job_id}/cancel", responses=STEERED, dependencies=[SUBMITTERS])
async def cancel_job(job: Job, context: Context, response: Response, body: Reason | None = None) -> JobSteered:
    """Cancel a job: pending nodes are skipped, running tasks are stopped. 202 if its owner has yet to act."""
    return await _control(context, job, Cancel(body.reason if body else None), response)


@router.post("/{job_id}/pause", responses=STEERED, dependencies=[OPERATORS])
async def pause_job(job: Job, context: Context, response: Response, body: Reason | None = None) -> JobSteered:
    """Pause a job; running tasks may finish."""
    return await _control(context, job, Pause(body.reason if body else None), response)


@router.post("/{job_id}/resume", responses=STEERED, dependencies=[OPERATORS])
async def resume_job(job: Job, context: Context, response: Response) -> JobSteered:
    """Resume a paused job."""
    return await _control(context, job, Resume(), response)


@router.post("/{job_id}/retry", responses=RETRIED, dependencies=[OPERATORS])
async def retry_job(job: Job, context: Context, response: Response, body: RetryJob | None = None) -> JobRetried:
    """Retry the failed nodes of a job; completed nodes do not run again.

    With a `bbox`, only the nodes whose item, parameters, output or checkpoint intersects it are retried, and the
    nodes after them. If other nodes are still unfinished then, the job fails again.
    """
    return await _control(context, job, Retry(bbox=body.bbox if body else None), response)


@router.post("/{job_id}/nodes/{node_id}/retry", responses=STEERED, dependencies=[OPERATORS])
async def retry_node(job: Job, node_id: NodeId, context: Context, response: Response) -> JobSteered:
    """Retry a failed node and its job; a node that waits for its next attempt is retried immediately."""
    return await _control(context, job, Retry(node_id), response)


async def _control(context: ServiceContext, job: Job, command: JobChange, response: Response) -> JobRetried:
    """Only the response to a retry has the numbers of selected nodes."""
    result = await control_job(context, job["job_id"], command)
    response.status_code = 200 if result.is_done else 202
    return JobRetried.model_validate({"job_id": str(job["job_id"]), **asdict(result)})


@router.post(
    "/{job_id}/tasks",
    status_code=201,
    response_model=TasksAccepted,
    responses={202: {"model": TasksAccepted}, **documented(404, 409, 413)},
    dependencies=[OPERATORS],
)
async def add_tasks(
    job: Job, body: AddTasks, services: ServicesDep, context: Context, response: Response
) -> TasksAccepted:
    """Add tasks to an unfinished job: 201 if its owner has added them, 202 if it has yet to.

    Queue, timeout and retries default to those of the handler, then to the settings.
    """
    known, queue = services.registry.spellings(), default_queue(services.settings)
    rows = [_task_row(task, known.get(task.handler), queue) for task in body.tasks]
    node_ids = await add_to_job(context.conn, job["job_id"], [orjson.dumps({"nodes": rows})], actor=context.actor)
    context.wake()
    is_done = await until_added(context.conn, job["job_id"], node_ids, seconds=context.wait_seconds)
    response.status_code = 201 if is_done else 202
    return TasksAccepted(job_id=str(job["job_id"]), node_ids=node_ids, is_done=is_done)


def _task_row(task: NewTask, handler: Handler | None, queue: str | None) -> dict[str, Any]:
    number = new_id()
    usual: dict[str, Any] = {"queue": queue}
    if handler is not None:
        retry = handler.retry.model_dump(mode="json") if handler.retry else None
        usual = {"queue": handler.queue or queue, "timeout_seconds": handler.timeout_seconds, "retry": retry}
    return {**usual, **task.model_dump(exclude_none=True), "id": added_id(None, number), "task": number}


@router.post("/{job_id}/signals/{name}", status_code=202, responses=documented(404, 409), dependencies=[SUBMITTERS])
async def send_signal(job: Job, name: str, context: Context, body: SendSignal | None = None) -> SignalReply:
    """Send a signal to the nodes that wait for it; if none does, it is kept for the first one that will."""
    result = await control_job(context, job["job_id"], contract.Signal(name, body.data if body else None))
    return SignalReply.model_validate({"job_id": str(job["job_id"]), "name": name, "status": result.status})


@router.post("/{job_id}/nodes/{node_id}/approve", responses=DECIDED, dependencies=[OPERATORS])
async def approve_node(
    job: Job, node_id: NodeId, context: Context, response: Response, body: Decide | None = None
) -> DecisionReply:
    """Approve a node, so that the job continues. If the node names approvers, only their keys may decide."""
    return await _decide(context, job, response, contract.Decide(node_id, True, body.comment if body else None))


@router.post("/{job_id}/nodes/{node_id}/reject", responses=DECIDED, dependencies=[OPERATORS])
async def reject_node(
    job: Job, node_id: NodeId, context: Context, response: Response, body: Decide | None = None
) -> DecisionReply:
    """Reject a node. It fails, and so does the job unless the node has `allow_failure`."""
    return await _decide(context, job, response, contract.Decide(node_id, False, body.comment if body else None))


async def _decide(context: ServiceContext, job: Job, response: Response, decision: contract.Decide) -> DecisionReply:
    result = await control_job(context, job["job_id"], decision)
    response.status_code = 200 if result.is_done else 202
    reply = {"node_id": decision.node_id, "status": result.status, "is_done": result.is_done}
    return DecisionReply.model_validate({"job_id": str(job["job_id"]), **reply})
