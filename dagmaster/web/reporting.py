"""Take in what is reported of attempts that are executed elsewhere."""

from dagmaster.errors import Invalid, TooLarge
from dagmaster.handlers.calling import TooLong, encode_output
from dagmaster.handlers.contract import Permanent, clean_text
from dagmaster.model.redact import redact_text
from dagmaster.schemas.callbacks import CheckpointCreate, TaskProgressCreate, TaskResultCreate
from dagmaster.store import progress
from dagmaster.store.connect import Connection, storable
from dagmaster.web.access import Caller, check_task
from dagmaster.web.services import Services


async def take_result(conn: Connection, services: Services, caller: Caller, body: TaskResultCreate) -> None:
    """The job's owner finds it in its mailbox, like any worker's report."""
    await check_task(conn, services, caller, body.task_id)
    is_failed = body.status == "failed"
    if is_failed and body.output is not None:
        raise Invalid("a failed task has no output; say what went wrong in error_message")
    data: dict[str, float] = {"permanent": True} if body.permanent else {}
    if body.retry_after_seconds is not None:
        data["retry_after_seconds"] = body.retry_after_seconds
    await progress.take_result(
        conn,
        body.task_id,
        kind=body.status,
        worker_id=storable(body.worker_id or caller.name or "api"),
        output=None if is_failed else encoded(body.output or {}, services.settings.max_output_bytes),
        error=redact_text(clean_text(body.error_message or "failed without a message")) if is_failed else None,
        duration_ms=body.execution_duration_ms,
        data=data,
    )
    services.wake()


async def take_progress(conn: Connection, services: Services, caller: Caller, body: TaskProgressCreate) -> None:
    await check_task(conn, services, caller, body.task_id)
    percent = body.progress_percent
    if percent is None and body.progress_current is not None and (body.progress_total or 0) > 0:
        percent = round(min(max(100 * body.progress_current / (body.progress_total or 1), 0.0), 100.0), 1)
    await progress.save_progress(
        conn,
        body.task_id,
        current=body.progress_current,
        total=body.progress_total,
        percent=percent,
        message=clean_text(body.progress_message) if body.progress_message is not None else None,
        worker_id=body.worker_id,
    )


async def take_checkpoint(conn: Connection, services: Services, caller: Caller, body: CheckpointCreate) -> int:
    """The id of the checkpoint."""
    await check_task(conn, services, caller, body.task_id)
    encoded(body.state_data, services.settings.max_output_bytes)
    fields = {**body.model_dump(), "worker_id": caller.name or "api"}
    checkpoint_id = await progress.save_checkpoint(conn, body.task_id, fields)
    services.wake()
    return checkpoint_id


def encoded(output: object, max_bytes: int) -> bytes:
    try:
        return encode_output(output, max_bytes)
    except TooLong as error:
        raise TooLarge(str(error)) from error
    except Permanent as error:  # An integer that readers would round, say.
        raise Invalid(str(error)) from error
