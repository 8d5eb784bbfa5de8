"""Reports of attempts that other programs execute."""

from datetime import UTC, datetime

from dagmaster.engine.messages import NO_MESSAGE, TaskCompleted, TaskFailed
from dagmaster.errors import Invalid, TaskOver, TooLarge
from dagmaster.handlers.contract import Permanent, clean_text
from dagmaster.handlers.invocation import TooLong, encode_output
from dagmaster.ids import TaskId, WorkerId
from dagmaster.model.redact import redact_text
from dagmaster.schemas.callbacks import (
    CheckpointCreate,
    CheckpointFields,
    ProgressFields,
    TaskProgressCreate,
    TaskResultCreate,
)
from dagmaster.store import task_reports
from dagmaster.store.connect import Connection, storable
from dagmaster.web.access import Caller, check_task
from dagmaster.web.services import Services


async def take_report(conn: Connection, services: Services, caller: Caller, body: TaskResultCreate) -> bool:
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
            await _save_progress(conn, body.task_id, fields, worker_id)
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


async def take_progress(conn: Connection, services: Services, caller: Caller, body: TaskProgressCreate) -> None:
    await check_task(conn, services, caller, body.task_id)
    await _save_progress(conn, body.task_id, body, _worker_of(body.worker_id, caller))
    services.wake()


async def _save_progress(conn: Connection, task_id: TaskId, progress: ProgressFields, worker_id: WorkerId) -> None:
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
        worker_id=worker_id,
    )


async def take_checkpoint(conn: Connection, services: Services, caller: Caller, body: CheckpointCreate) -> int:
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


def encoded(output: object, max_bytes: int) -> bytes:
    try:
        return encode_output(output, max_bytes)
    except TooLong as error:
        raise TooLarge(str(error)) from error
    except Permanent as error:  # Such as an integer of more than 64 bits.
        raise Invalid(str(error)) from error
