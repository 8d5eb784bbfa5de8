"""Reports from programs that execute tasks outside of a worker."""

from datetime import UTC, datetime

from fastapi import APIRouter

from dagmaster.engine.messages import NO_MESSAGE, TaskCompleted, TaskFailed
from dagmaster.errors import TaskOver
from dagmaster.handlers.contract import clean_text
from dagmaster.http.errors import documented
from dagmaster.ids import TaskId, WorkerId
from dagmaster.model.redact import redact_text
from dagmaster.schemas.callbacks import (
    Accepted,
    CheckpointCreate,
    CheckpointFields,
    CheckpointSaved,
    ProgressFields,
    ResultAccepted,
    TaskProgressCreate,
    TaskResultCreate,
    TaskToken,
)
from dagmaster.store import task_reports
from dagmaster.store.connect import Connection, storable
from dagmaster.web.access import REPORTERS, WORKERS, Admitted, Caller, check_task, task_token
from dagmaster.web.remote_workers import encoded
from dagmaster.web.services import Conn, Services, ServicesDep

router = APIRouter(prefix="/api/v1", tags=["callbacks"], responses=documented(404))


@router.post("/callbacks/task-result", status_code=202, responses=documented(409, 413), dependencies=[REPORTERS])
async def report_result(body: TaskResultCreate, caller: Admitted, services: ServicesDep, conn: Conn) -> ResultAccepted:
    """Report that an attempt has started or ended. Repeated reports are answered with `duplicate`.

    A report for an attempt that is over gets 409: it is recorded in the timeline and changes nothing.
    """
    is_new = await _take_report(conn, services, caller, body)
    return ResultAccepted(task_id=body.task_id, duplicate=not is_new)


@router.post("/callbacks/task-progress", responses=documented(409), dependencies=[REPORTERS])
async def report_progress(body: TaskProgressCreate, caller: Admitted, services: ServicesDep, conn: Conn) -> Accepted:
    """Report the progress of an attempt and mark its node as running."""
    await _take_task_progress(conn, services, caller, body)
    return Accepted(task_id=body.task_id)


@router.post("/callbacks/checkpoint", responses=documented(409, 413), dependencies=[REPORTERS])
async def report_checkpoint(
    body: CheckpointCreate, caller: Admitted, services: ServicesDep, conn: Conn
) -> CheckpointSaved:
    """Save a checkpoint: the next attempt receives `state_data` and resumes after this phase."""
    checkpoint_id = await _take_checkpoint(conn, services, caller, body)
    return CheckpointSaved(task_id=body.task_id, checkpoint_id=str(checkpoint_id))


@router.post("/tasks/{task_id}/token", dependencies=[WORKERS])
async def make_token(task_id: TaskId, services: ServicesDep, conn: Conn) -> TaskToken:
    """Create a token that allows reports on this attempt and nothing else."""
    await task_reports.check_task_exists(conn, task_id)
    return TaskToken(task_id=task_id, token=await task_token(conn, services, task_id))


async def _take_report(conn: Connection, services: Services, caller: Caller, body: TaskResultCreate) -> bool:
    """Store a report in the mailbox of the job's owner; returns whether it is new."""
    await check_task(conn, services, caller, body.task_id)
    worker_id = _worker_of(body.worker_id, caller)
    is_ended = body.status in ("completed", "failed")
    output = encoded(body.output or {}, services.settings.max_output_bytes) if body.status == "completed" else None
    is_new = await _take_progress(conn, services, body, worker_id, is_last=is_ended)
    if is_ended:
        is_new = await _take_end(conn, body, worker_id, output)
    services.wake()
    return is_new


def _worker_of(named: str | None, caller: Caller) -> WorkerId:
    return WorkerId(storable(named or caller.name or "api"))


async def _take_progress(
    conn: Connection, services: Services, body: TaskResultCreate, worker_id: WorkerId, *, is_last: bool
) -> bool:
    """Progress and checkpoints of an attempt that is over are dropped; the report of its end returns the reason."""
    is_new = False
    try:
        if not is_last:
            is_new = await task_reports.begin_elsewhere(conn, body.task_id, worker_id)
        if body.progress is not None:
            progress = body.progress
            fields = progress if isinstance(progress, ProgressFields) else ProgressFields(progress_percent=progress)
            await _save_progress(conn, body.task_id, fields, body.worker_id, worker_id)
            is_new = True
        if body.checkpoint is not None:
            await _save_checkpoint(conn, services, body.task_id, body.checkpoint, worker_id)
            is_new = True
    except TaskOver:
        if not is_last:
            raise
    return is_new


async def _take_end(conn: Connection, body: TaskResultCreate, worker_id: WorkerId, output: bytes | None) -> bool:
    job_id, node_id = task_reports.parts_of(body.task_id)
    now, duration_ms = datetime.now(UTC), body.execution_duration_ms
    report: TaskCompleted | TaskFailed
    if output is not None:
        report = TaskCompleted(node_id, body.task_id, worker_id, now, output, duration_ms)
    else:
        error = redact_text(clean_text(body.error_message or NO_MESSAGE))
        permanent, retry_after = body.permanent, body.retry_after_seconds
        report = TaskFailed(node_id, body.task_id, worker_id, now, error, permanent, retry_after, duration_ms)
    return await task_reports.take_result(conn, job_id, report)


async def _take_task_progress(conn: Connection, services: Services, caller: Caller, body: TaskProgressCreate) -> None:
    await check_task(conn, services, caller, body.task_id)
    await _save_progress(conn, body.task_id, body, body.worker_id, _worker_of(body.worker_id, caller))
    services.wake()


async def _save_progress(
    conn: Connection, task_id: TaskId, progress: ProgressFields, named: str | None, reporter: WorkerId
) -> None:
    percent = progress.progress_percent
    if percent is None and progress.progress_current is not None and (progress.progress_total or 0) > 0:
        percent = round(min(max(100 * progress.progress_current / (progress.progress_total or 1), 0.0), 100.0), 1)
    await task_reports.save_progress(
        conn,
        task_id,
        current=progress.progress_current,
        total=progress.progress_total,
        percent=percent,
        message=clean_text(progress.progress_message) if progress.progress_message is not None else None,
        worker_id=reporter if named else None,
        reporter=reporter,
    )


async def _take_checkpoint(conn: Connection, services: Services, caller: Caller, body: CheckpointCreate) -> int:
    """The id of the checkpoint."""
    await check_task(conn, services, caller, body.task_id)
    checkpoint_id = await _save_checkpoint(conn, services, body.task_id, body, _worker_of(None, caller))
    services.wake()
    return checkpoint_id


async def _save_checkpoint(
    conn: Connection, services: Services, task_id: TaskId, checkpoint: CheckpointFields, worker_id: WorkerId
) -> int:
    encoded(checkpoint.state_data, services.settings.max_output_bytes)
    return await task_reports.save_checkpoint(conn, task_id, {**checkpoint.model_dump(), "worker_id": worker_id})
