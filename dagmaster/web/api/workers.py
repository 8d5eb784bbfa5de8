"""List and control workers, and the protocol of remote workers."""

from typing import Annotated, Literal

from fastapi import APIRouter, Body, Path, Request, Response

from dagmaster.http.errors import documented
from dagmaster.ids import WorkerId
from dagmaster.schemas.common import Page
from dagmaster.schemas.dynamic_nodes import AddedByWorker, AddedTaken
from dagmaster.schemas.fleet import WorkerReply
from dagmaster.schemas.task_cache import RecallResult, RememberResult, ResultRecalled
from dagmaster.schemas.workers import (
    MAX_BATCH,
    CheckpointBefore,
    CheckpointStored,
    ClaimTasks,
    DiscardCheckpoint,
    HeldTasks,
    LogChunk,
    LogsTaken,
    OpenSecrets,
    ProgressCreate,
    RegisterWorker,
    Reports,
    ReportsTaken,
    SecretsOpened,
    TasksClaimed,
    WorkerCheckpoint,
    WorkerHeartbeat,
    WorkerOrders,
    WorkerRegistered,
    WorkerWanted,
)
from dagmaster.service.contract import WorkerCommand
from dagmaster.store import workers as worker_store
from dagmaster.store.job_control import control_worker
from dagmaster.store.remote_workers import leave_remote
from dagmaster.web import remote_workers
from dagmaster.web.access import OPERATORS, READERS, WORKERS, Admitted
from dagmaster.web.paging import Limit, Offset, to_page
from dagmaster.web.remote_workers import Own
from dagmaster.web.services import Conn, ServicesDep

router = APIRouter(prefix="/api/v1/workers", tags=["fleet"])

OWN = documented(404, 410)
STEERED = documented(404, 409)


@router.get("", dependencies=[READERS])
async def list_workers(
    conn: Conn,
    status: Literal["active", "stopped", "lost"] | None = None,
    limit: Limit = 50,
    offset: Offset = 0,
) -> Page[WorkerReply]:
    """List workers: active ones first, then the newest."""
    rows = await worker_store.list_workers(conn, status=status, limit=limit + 1, offset=offset)
    return to_page([WorkerReply(**row) for row in rows], limit, offset)


@router.post("", status_code=201, dependencies=[WORKERS])
async def register_worker(
    body: RegisterWorker, caller: Admitted, services: ServicesDep, conn: Conn
) -> WorkerRegistered:
    """Register a worker. Returns its id and the protocol's limits; only this key may act for it."""
    return await remote_workers.register(conn, services, caller, body)


@router.post("/{worker_id}/heartbeat", responses=OWN, dependencies=[WORKERS])
async def beat_worker(worker: Own, body: WorkerHeartbeat, conn: Conn) -> WorkerOrders:
    """Renew the worker's lease and get its revoked tasks. 410 if the worker was declared lost."""
    return await remote_workers.heartbeat(conn, worker, body)


@router.post("/{worker_id}/claim", responses=OWN, dependencies=[WORKERS])
async def claim_tasks(
    worker_id: WorkerId, body: ClaimTasks, caller: Admitted, services: ServicesDep, request: Request
) -> TasksClaimed:
    """Report results and claim tasks in one transaction. Without reports, the request waits for a task."""

    async def is_given_up() -> bool:
        return request.app.state.is_stopping or await request.is_disconnected()

    return await remote_workers.claim(services, caller, worker_id, body, is_given_up=is_given_up)


@router.get("/{worker_id}/tasks", responses=OWN, dependencies=[WORKERS])
async def list_held_tasks(worker: Own, conn: Conn) -> HeldTasks:
    """List the tasks that the worker holds, including claims whose response was lost."""
    return HeldTasks(tasks=await remote_workers.running_tasks(conn, worker))


@router.post("/{worker_id}/results", responses=OWN, dependencies=[WORKERS])
async def report_results(
    worker: Own, body: Reports, caller: Admitted, services: ServicesDep, conn: Conn
) -> ReportsTaken:
    """Report the results of attempts. Each gets its own answer; repeating a report is safe."""
    return ReportsTaken(outcomes=await remote_workers.take_reports(conn, services, caller, worker, body))


@router.post("/{worker_id}/progress", status_code=204, response_class=Response, responses=OWN, dependencies=[WORKERS])
async def report_worker_progress(
    worker: Own, body: Annotated[list[ProgressCreate], Body(max_length=MAX_BATCH)], conn: Conn
) -> None:
    """Report the progress of tasks that the worker holds; other tasks are ignored."""
    await remote_workers.report_progress(conn, worker, body)


@router.post(
    "/{worker_id}/checkpoints", status_code=201, responses=documented(404, 409, 410, 413), dependencies=[WORKERS]
)
async def save_checkpoint(worker: Own, body: WorkerCheckpoint, services: ServicesDep, conn: Conn) -> CheckpointStored:
    """Save a checkpoint. Once this returns, the next attempt resumes after it."""
    return CheckpointStored(checkpoint_id=str(await remote_workers.save_checkpoint(conn, services, worker, body)))


@router.post(
    "/{worker_id}/checkpoints/{checkpoint_id}/discard", responses=documented(404, 409, 410), dependencies=[WORKERS]
)
async def discard_checkpoint(
    worker: Own, checkpoint_id: Annotated[int, Path(ge=0, lt=2**63)], body: DiscardCheckpoint, conn: Conn
) -> CheckpointBefore:
    """Discard an unusable checkpoint, such as one whose file is missing. Returns the previous checkpoint."""
    return CheckpointBefore(checkpoint=await remote_workers.discard_checkpoint(conn, worker, checkpoint_id, body))


@router.post(
    "/{worker_id}/tasks/added", status_code=201, responses=documented(404, 409, 410, 413), dependencies=[WORKERS]
)
async def add_tasks_of_worker(worker: Own, body: AddedByWorker, services: ServicesDep, conn: Conn) -> AddedTaken:
    """Add nodes to the job of a task. Once this returns, they are stored; repeating the request is safe."""
    await remote_workers.add_nodes(conn, services, worker, body)
    return AddedTaken(slices=len(body.slices))


@router.post("/{worker_id}/cache/recall", responses=documented(404, 409, 410), dependencies=[WORKERS])
async def recall_result(worker: Own, body: RecallResult, conn: Conn) -> ResultRecalled:
    """Get the cached result of an earlier task with the same handler and parameters, if it is still valid."""
    return ResultRecalled(result=await remote_workers.recall(conn, worker, body))


@router.post(
    "/{worker_id}/cache",
    status_code=204,
    response_class=Response,
    responses=documented(404, 409, 410, 413),
    dependencies=[WORKERS],
)
async def remember_result(worker: Own, body: RememberResult, services: ServicesDep, conn: Conn) -> None:
    """Cache the result of a task for later tasks with the same parameters. The result must still be reported."""
    await remote_workers.remember(conn, services, worker, body)


@router.post("/{worker_id}/secrets", responses=documented(404, 409, 410), dependencies=[WORKERS])
async def open_secrets(
    worker: Own, body: OpenSecrets, services: ServicesDep, conn: Conn, response: Response
) -> SecretsOpened:
    """Get the secret values of a task of this worker, right before its handler is called."""
    response.headers["Cache-Control"] = "no-store"
    return SecretsOpened(values=await remote_workers.open_secrets(conn, services, worker, body))


@router.post("/{worker_id}/logs", responses=OWN, dependencies=[WORKERS])
async def write_logs(
    worker: Own, body: Annotated[list[LogChunk], Body(max_length=MAX_BATCH)], services: ServicesDep, conn: Conn
) -> LogsTaken:
    """Send pieces of task logs. Each has an offset, so that a repeated piece is stored once."""
    return LogsTaken(logs=await remote_workers.take_logs(conn, services, worker, body))


@router.delete("/{worker_id}", status_code=204, response_class=Response, responses=OWN, dependencies=[WORKERS])
async def leave_worker(worker: Own, services: ServicesDep, conn: Conn) -> None:
    """Deregister a worker. Its tasks are given back, which costs no attempt."""
    await leave_remote(conn, worker)
    services.wake()


@router.post("/{worker_id}/drain", responses=STEERED, dependencies=[OPERATORS])
async def drain_worker(worker_id: WorkerId, caller: Admitted, conn: Conn) -> WorkerWanted:
    """Drain a worker: no new tasks; running tasks may finish."""
    return await _control(conn, caller, worker_id, "drain")


@router.post("/{worker_id}/stop", responses=STEERED, dependencies=[OPERATORS])
async def stop_worker(worker_id: WorkerId, caller: Admitted, conn: Conn) -> WorkerWanted:
    """Stop a worker, as SIGTERM does: it finishes the tasks it can in time and gives back the others."""
    return await _control(conn, caller, worker_id, "stop")


@router.post("/{worker_id}/resume", responses=STEERED, dependencies=[OPERATORS])
async def resume_worker(worker_id: WorkerId, caller: Admitted, conn: Conn) -> WorkerWanted:
    """Resume a drained worker."""
    return await _control(conn, caller, worker_id, "resume")


async def _control(conn: Conn, caller: Admitted, worker_id: WorkerId, command: WorkerCommand) -> WorkerWanted:
    desired = await control_worker(conn, worker_id, command, actor=caller.name or None)
    return WorkerWanted.model_validate({"worker_id": worker_id, "wanted": desired})
