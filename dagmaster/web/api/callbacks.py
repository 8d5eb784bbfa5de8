"""Reports from programs that execute tasks outside of a worker."""

from fastapi import APIRouter

from dagmaster.ids import TaskId
from dagmaster.schemas.callbacks import (
    Accepted,
    CheckpointCreate,
    CheckpointSaved,
    ResultAccepted,
    TaskProgressCreate,
    TaskResultCreate,
    TaskToken,
)
from dagmaster.store.task_reports import check_task_exists
from dagmaster.web import external_reports
from dagmaster.web.access import REPORTERS, WORKERS, Admitted, task_token
from dagmaster.web.errors import documented
from dagmaster.web.services import Conn, ServicesDep

router = APIRouter(prefix="/api/v1", tags=["callbacks"], responses=documented(404))


@router.post("/callbacks/task-result", status_code=202, responses=documented(409, 413), dependencies=[REPORTERS])
async def report_result(body: TaskResultCreate, caller: Admitted, services: ServicesDep, conn: Conn) -> ResultAccepted:
    """Report that an attempt has started or ended. Repeated reports are answered with `duplicate`.

    A report for an attempt that is over gets 409: it is recorded in the timeline and changes nothing.
    """
    is_new = await external_reports.take_report(conn, services, caller, body)
    return ResultAccepted(task_id=body.task_id, duplicate=not is_new)


@router.post("/callbacks/task-progress", responses=documented(409), dependencies=[REPORTERS])
async def report_progress(body: TaskProgressCreate, caller: Admitted, services: ServicesDep, conn: Conn) -> Accepted:
    """Report the progress of an attempt and mark its node as running."""
    await external_reports.take_progress(conn, services, caller, body)
    return Accepted(task_id=body.task_id)


@router.post("/callbacks/checkpoint", responses=documented(409, 413), dependencies=[REPORTERS])
async def report_checkpoint(
    body: CheckpointCreate, caller: Admitted, services: ServicesDep, conn: Conn
) -> CheckpointSaved:
    """Save a checkpoint: the next attempt receives `state_data` and resumes after this phase."""
    checkpoint_id = await external_reports.take_checkpoint(conn, services, caller, body)
    return CheckpointSaved(task_id=body.task_id, checkpoint_id=str(checkpoint_id))


@router.post("/tasks/{task_id}/token", dependencies=[WORKERS])
async def make_token(task_id: TaskId, services: ServicesDep, conn: Conn) -> TaskToken:
    """Create a token that allows reports on this attempt and nothing else."""
    await check_task_exists(conn, task_id)
    return TaskToken(task_id=task_id, token=await task_token(conn, services, task_id))
