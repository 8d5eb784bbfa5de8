"""Workers over HTTP: long-polling claims, idempotent reports, progress, checkpoints and logs."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from time import monotonic
from typing import Annotated, Any

import orjson
from fastapi import Depends

from dagmaster.engine.messages import NO_MESSAGE
from dagmaster.errors import Forbidden, Invalid, TaskOver, TooLarge, UnknownTask
from dagmaster.handlers.contract import Permanent, Progress, clean_text
from dagmaster.handlers.invocation import TooLong, encode_output
from dagmaster.ids import TaskId, WorkerId
from dagmaster.model.contracts import Contract
from dagmaster.model.redact import redact_text
from dagmaster.model.sealed import BrokenSeal, references_in
from dagmaster.queues.contract import TaskReport
from dagmaster.schemas.dynamic_nodes import AddedByWorker
from dagmaster.schemas.task_cache import RecalledResult, RecallResult, RememberResult
from dagmaster.schemas.workers import (
    PROTOCOL,
    ClaimedTask,
    ClaimTasks,
    DiscardCheckpoint,
    LogChunk,
    LogTaken,
    OpenSecrets,
    ProgressCreate,
    RegisterWorker,
    ReportCreate,
    ReportOutcome,
    TaskCheckpoint,
    TasksClaimed,
    WorkerCheckpoint,
    WorkerHeartbeat,
    WorkerOrders,
    WorkerRegistered,
)
from dagmaster.store import handlers, mail_codec, remote_workers, task_cache, task_reports, tasks
from dagmaster.store.connect import Connection
from dagmaster.store.mail_codec import MailRow
from dagmaster.store.notifications import MAIL
from dagmaster.store.sealer import open_sealer
from dagmaster.web.access import Admitted, Caller
from dagmaster.web.services import Conn, Services

log = logging.getLogger(__name__)

# Shorter than the response timeout of common proxies.
CLAIM_WAIT_SECONDS = 20.0
# The interval at which a wait checks for a server shutdown and a disconnected client.
CHECK_SECONDS = 0.5
# Polling interval if no notification arrives.
POLL_SECONDS = 5.0
# Around an output in a body.
SLACK_BYTES = 64 * 1024
# The last log lines of a task may arrive after its result.
LOG_AFTER_SECONDS = 600.0
# A worker's own notes about omitted output do not count towards the limit.
LOG_NOTES_BYTES = 1024

Row = dict[str, Any]


async def own_worker(worker_id: WorkerId, caller: Admitted, conn: Conn) -> WorkerId:
    """The worker of the path, which must belong to the caller's key."""
    await remote_workers.get_remote(conn, worker_id, caller.key_id)
    return worker_id


Own = Annotated[WorkerId, Depends(own_worker, scope="function")]


async def register(conn: Connection, services: Services, caller: Caller, body: RegisterWorker) -> WorkerRegistered:
    settings = services.settings
    worker_id = await remote_workers.register_remote(
        conn,
        hostname=body.hostname,
        pid=body.pid,
        queues=body.queues,
        handlers=body.handlers,
        concurrency=body.concurrency,
        key_id=caller.key_id,
    )
    contracts = [Contract(**dict(contract)) for contract in body.contracts]
    await handlers.register_contracts(conn, worker_id, contracts)
    return WorkerRegistered(
        worker_id=worker_id,
        protocol=PROTOCOL,
        version=version("dagmaster"),
        heartbeat_interval_seconds=settings.worker_heartbeat_interval_seconds,
        lost_after_seconds=settings.worker_lost_after_seconds,
        claim_wait_seconds=CLAIM_WAIT_SECONDS,
        max_body_bytes=settings.max_body_bytes,
        max_output_bytes=_max_output_bytes(services),
        log_max_bytes=settings.log_max_bytes,
    )


def _max_output_bytes(services: Services) -> int:
    """Limited by the size of a request body."""
    settings = services.settings
    return min(settings.max_output_bytes, max(settings.max_body_bytes - SLACK_BYTES, settings.max_body_bytes // 2))


async def heartbeat(conn: Connection, worker_id: WorkerId, body: WorkerHeartbeat) -> WorkerOrders:
    stats = orjson.loads(encoded(body.stats, SLACK_BYTES)) if body.stats is not None else None
    await remote_workers.beat_remote(conn, worker_id, completed=body.completed, failed=body.failed, stats=stats)
    desired, withdrawn = await tasks.orders(conn, worker_id, body.running)
    return WorkerOrders.model_validate({"withdrawn": withdrawn, "wanted": desired})


# Claims and reports.


async def claim(
    services: Services,
    caller: Caller,
    worker_id: WorkerId,
    body: ClaimTasks,
    *,
    is_given_up: Callable[[], Awaitable[bool]],
) -> TasksClaimed:
    """Wait, without holding a connection, until there are tasks, the time is over, or the client disconnects."""
    deadline = monotonic() + min(body.wait_seconds, CLAIM_WAIT_SECONDS)
    while True:
        signal = services.task_signal.next()
        async with services.task_signal.turns, services.pool.connection() as conn:
            await remote_workers.get_remote(conn, worker_id, caller.key_id)
            claimed = await _exchange(conn, services, caller, worker_id, body)
        if claimed.tasks or body.reports or not body.limit:
            return claimed
        if not await _is_signalled(signal, deadline, is_given_up):
            return claimed


async def _is_signalled(signal: asyncio.Event, deadline: float, is_given_up: Callable[[], Awaitable[bool]]) -> bool:
    """Whether to look for tasks again; false if the time is over or the client has disconnected."""
    poll_at = monotonic() + POLL_SECONDS
    while True:
        now = monotonic()
        if now >= deadline or await is_given_up():
            return False
        if signal.is_set() or now >= poll_at:
            return True
        try:
            async with asyncio.timeout(min(CHECK_SECONDS, deadline - now)):
                await signal.wait()
        except TimeoutError:
            continue


async def _exchange(
    conn: Connection, services: Services, caller: Caller, worker_id: WorkerId, body: ClaimTasks
) -> TasksClaimed:
    async with conn.transaction():
        outcomes = await _report(conn, services, caller, worker_id, body.reports)
        rows = await tasks.claim_and_announce(conn, worker_id, body.limit) if body.limit else []
    if body.reports:
        services.wake()
    elif rows:
        services.notifier.notify(MAIL, urgent=False)  # Starts are reported together with ends.
    return TasksClaimed(tasks=[_claimed(row) for row in rows], outcomes=outcomes)


async def running_tasks(conn: Connection, worker_id: WorkerId) -> list[ClaimedTask]:
    return [_claimed(row) for row in await tasks.held(conn, worker_id, [])]


def _claimed(row: Row) -> ClaimedTask:
    checkpoint = None
    if row["checkpoint_id"] is not None:
        checkpoint = TaskCheckpoint(
            checkpoint_id=str(row["checkpoint_id"]),
            phase=row["checkpoint_phase"],
            data=row["checkpoint_data"],
            artifacts=row["checkpoint_artifacts"],
        )
    return ClaimedTask(**{**row, "params": row["params"] or {}}, checkpoint=checkpoint)


async def take_reports(
    conn: Connection, services: Services, caller: Caller, worker_id: WorkerId, reports: Sequence[ReportCreate]
) -> list[ReportOutcome]:
    outcomes = await _report(conn, services, caller, worker_id, reports)
    services.wake()
    return outcomes


async def _report(
    conn: Connection, services: Services, caller: Caller, worker_id: WorkerId, reports: Sequence[ReportCreate]
) -> list[ReportOutcome]:
    """An invalid report is refused; the others are accepted."""
    mail: dict[str, MailRow] = {}
    wrong: dict[str, ReportOutcome] = {}
    now = datetime.now(UTC)
    for report in reports:
        try:
            checked = _checked(services, report)
            mail[report.task_id] = mail_codec.encode(checked.job_id, checked.message(worker_id, now))
        except UnknownTask as error:
            wrong[report.task_id] = ReportOutcome(task_id=report.task_id, outcome="over", reason=str(error))
        except (TooLarge, Invalid) as error:
            wrong[report.task_id] = ReportOutcome(task_id=report.task_id, outcome="refused", reason=str(error))
    accepted = await remote_workers.take_reports(conn, caller.key_id, list(mail.values())) if mail else set()
    return [wrong.get(report.task_id) or _outcome(report.task_id, accepted) for report in reports]


def _outcome(task_id: TaskId, accepted: set[str]) -> ReportOutcome:
    if task_id in accepted:
        return ReportOutcome(task_id=task_id, outcome="accepted")
    return ReportOutcome(task_id=task_id, outcome="over", reason="it was reported before, or is no longer needed")


def _checked(services: Services, report: ReportCreate) -> TaskReport:
    """Raises UnknownTask, TooLarge or Invalid."""
    job_id, node_id = task_reports.parts_of(report.task_id)
    is_failed = report.kind == "failed"
    return TaskReport(
        task_id=report.task_id,
        job_id=job_id,
        node_id=node_id,
        kind=report.kind,
        output=encoded(report.output or {}, _max_output_bytes(services)) if report.kind == "completed" else None,
        error=redact_text(clean_text(report.error or NO_MESSAGE)) if is_failed else None,
        duration_ms=report.duration_ms,
        permanent=report.permanent,
        retry_after_seconds=report.retry_after_seconds,
        error_types=tuple(clean_text(name) for name in report.error_types),
        details=_details(services, report),
        timed_out=report.timed_out,
    )


def _details(services: Services, report: ReportCreate) -> Row:
    if report.details is None:
        return {}
    details = report.details.model_dump(exclude_none=True, exclude={"has_log"})
    where = {"log_path": services.task_logs.path_of(report.task_id)} if report.details.has_log else {}
    try:
        return {**orjson.loads(encoded(details, _max_output_bytes(services))), **where}
    except Invalid as error:  # Invalid measurements must not block the result.
        log.warning("the measurements of task %s are not stored: %s", report.task_id, error)
        return where


# While a task runs.


async def report_progress(conn: Connection, worker_id: WorkerId, reports: Sequence[ProgressCreate]) -> None:
    """One statement per task: one for several could deadlock with an owner."""
    for report in reports:
        progress = Progress(report.current, report.total, clean_text(report.message or ""))
        await task_reports.tell_progress(conn, worker_id, report.task_id, progress)


async def save_checkpoint(conn: Connection, services: Services, worker_id: WorkerId, body: WorkerCheckpoint) -> int:
    """The id of the checkpoint. Raises TaskOver."""
    await _check_held(conn, worker_id, body.task_id)
    data, artifacts = orjson.loads(encoded([body.data, body.artifacts], _max_output_bytes(services)))
    phase = clean_text(body.phase)
    fields = {"phase_name": phase, "state_data": data, "artifacts_completed": artifacts, "worker_id": worker_id}
    checkpoint_id = await task_reports.save_checkpoint(conn, body.task_id, fields, is_claimed=True)
    services.wake()
    return checkpoint_id


async def add_nodes(conn: Connection, services: Services, worker_id: WorkerId, body: AddedByWorker) -> None:
    """Raises TaskOver. The job's owner validates the slices and fails the attempt if one is invalid."""
    await _check_held(conn, worker_id, body.task_id)
    await task_reports.add_nodes(conn, worker_id, body.task_id, [orjson.dumps(piece) for piece in body.slices])
    services.wake()


async def discard_checkpoint(
    conn: Connection, worker_id: WorkerId, checkpoint_id: int, body: DiscardCheckpoint
) -> TaskCheckpoint | None:
    await _check_held(conn, worker_id, body.task_id)
    row = await task_reports.discard_checkpoint(conn, worker_id, body.task_id, checkpoint_id, clean_text(body.reason))
    if row is None:
        return None
    return TaskCheckpoint(
        checkpoint_id=str(row["checkpoint_id"]),
        phase=row["phase_name"],
        data=row["state_data"],
        artifacts=row["artifacts_completed"],
    )


async def recall(conn: Connection, worker_id: WorkerId, body: RecallResult) -> RecalledResult | None:
    """Raises TaskOver."""
    await _check_held(conn, worker_id, body.task_id)
    row = await task_cache.recall_result(conn, worker_id, body.task_id, body.version)
    return RecalledResult(**row) if row is not None else None


async def open_secrets(conn: Connection, services: Services, worker_id: WorkerId, body: OpenSecrets) -> dict[str, str]:
    """Raises TaskOver, and Forbidden for a secret that does not belong to this task."""
    await _check_held(conn, worker_id, body.task_id)
    references = references_in(*await tasks.sealed_texts(conn, worker_id, body.task_id))
    if not references.issuperset(body.references):
        raise Forbidden(f"task {body.task_id} has no access to that secret")
    sealer = await open_sealer(conn, services.settings.chosen_secret())
    try:
        return sealer.open(body.references)
    except BrokenSeal as error:
        raise Invalid(str(error)) from error


async def remember(conn: Connection, services: Services, worker_id: WorkerId, body: RememberResult) -> None:
    """Raises TaskOver."""
    await _check_held(conn, worker_id, body.task_id)
    output = encoded(body.output, _max_output_bytes(services))
    await task_cache.remember_result(conn, worker_id, body.task_id, body.version, output, body.seconds)


async def take_logs(
    conn: Connection, services: Services, worker_id: WorkerId, chunks: Sequence[LogChunk]
) -> list[LogTaken]:
    """Bytes that are already stored are not appended again: a worker may repeat a piece."""
    own = await remote_workers.own_tasks(
        conn, worker_id, [chunk.task_id for chunk in chunks], seconds=LOG_AFTER_SECONDS
    )
    return [await _take_log(services, chunk, is_own=chunk.task_id in own) for chunk in chunks]


async def _take_log(services: Services, chunk: LogChunk, *, is_own: bool) -> LogTaken:
    if not is_own:
        return LogTaken(task_id=chunk.task_id, outcome="over", size=0)
    async with services.log_turns.setdefault(chunk.task_id, asyncio.Lock()):
        size = await services.task_logs.size(chunk.task_id) or 0
        room = services.settings.log_max_bytes + LOG_NOTES_BYTES - size
        new = chunk.content[max(size - chunk.offset, 0) :][: max(room, 0)]
        if new:
            await services.task_logs.append(chunk.task_id, new)
    return LogTaken(task_id=chunk.task_id, outcome="accepted" if room > len(new) else "over", size=size + len(new))


async def _check_held(conn: Connection, worker_id: WorkerId, task_id: TaskId) -> None:
    _, withdrawn = await tasks.orders(conn, worker_id, [task_id])
    if withdrawn:
        raise TaskOver(f"this worker does not hold task {task_id}, or no longer; stop it and report nothing")


def encoded(output: object, max_bytes: int) -> bytes:
    """Raises TooLarge and Invalid."""
    try:
        return encode_output(output, max_bytes)
    except TooLong as error:
        raise TooLarge(str(error)) from error
    except Permanent as error:  # Such as an integer of more than 64 bits.
        raise Invalid(str(error)) from error
