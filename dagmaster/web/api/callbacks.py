"""Reports of those who execute tasks elsewhere."""

from fastapi import APIRouter

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
from dagmaster.web.services import Conn, Given

router = APIRouter(prefix="/api/v1", tags=["callbacks"], responses=documented(404))


@router.post("/callbacks/task-result", status_code=202, responses=documented(409, 413), dependencies=[REPORTERS])
async def report_result(body: TaskResultCreate, caller: Admitted, services: Given, conn: Conn) -> ResultAccepted:
    """How an attempt ended, or that it runs. The same report again is a `duplicate`.

    409 for an attempt that is over: the report is kept, noted in the timeline, and changes nothing.
    """
    is_new = await external_reports.take_report(conn, services, caller, body)
    return ResultAccepted(task_id=body.task_id, duplicate=not is_new)


@router.post("/callbacks/task-progress", responses=documented(409), dependencies=[REPORTERS])
async def report_progress(body: TaskProgressCreate, caller: Admitted, services: Given, conn: Conn) -> Accepted:
    """How far an attempt is: its node is running. It never changes how the attempt ends."""
    await external_reports.take_progress(conn, services, caller, body)
    return Accepted(task_id=body.task_id)


@router.post("/callbacks/checkpoint", responses=documented(409, 413), dependencies=[REPORTERS])
async def report_checkpoint(body: CheckpointCreate, caller: Admitted, services: Given, conn: Conn) -> CheckpointSaved:
    """A phase is done: the next attempt is given `state_data` and resumes after it."""
    checkpoint_id = await external_reports.take_checkpoint(conn, services, caller, body)
    return CheckpointSaved(task_id=body.task_id, checkpoint_id=str(checkpoint_id))


@router.post("/tasks/{task_id}/token", dependencies=[WORKERS])
async def make_token(task_id: str, services: Given, conn: Conn) -> TaskToken:
    """A token that lets whoever has it report for this attempt, and for nothing else."""
    await check_task_exists(conn, task_id)
    return TaskToken(task_id=task_id, token=await task_token(conn, services, task_id))
