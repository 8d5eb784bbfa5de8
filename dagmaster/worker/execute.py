"""Execute one task: find its handler, run it within its timeout, and report the outcome."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import UTC
from threading import Event
from time import perf_counter
from typing import Any

import orjson

from dagmaster import tracing
from dagmaster.engine.messages import NO_MESSAGE
from dagmaster.errors import DagmasterError
from dagmaster.handlers import Checkpoint, Handler, HandlerContext, HandlerResult, Interrupted, Registry
from dagmaster.handlers.artifacts import missing
from dagmaster.handlers.contract import clean_text
from dagmaster.handlers.futures import in_loop
from dagmaster.handlers.invocation import call, encode_output, is_callers_own
from dagmaster.ids import TaskId, WorkerId
from dagmaster.logs import about, task_mask
from dagmaster.model.cache_policy import Caching
from dagmaster.model.redact import redact_text
from dagmaster.model.retry import TIMED_OUT
from dagmaster.model.sealed import BrokenSeal, Mask, may_hold_sealed, open_all, references_in
from dagmaster.queues.contract import SavedCheckpoint, TaskMessage, TaskReport
from dagmaster.worker.capture import TaskLog, capturing
from dagmaster.worker.logbook import Logbook
from dagmaster.worker.processes.children import Children
from dagmaster.worker.progress import ProgressBuffer
from dagmaster.worker.result_cache import ResultCache


@dataclass(frozen=True, slots=True)
class ExecutionContext:
    """The resources that the tasks of a worker share."""

    registry: Registry
    threads: Executor
    children: Children
    progress_buffer: ProgressBuffer
    logbook: Logbook
    max_output_bytes: int
    stop_within_seconds: float
    discard: Callable[[TaskId, int, str], Awaitable[SavedCheckpoint | None]]
    handler_ended: Callable[[TaskId], None]
    leave_behind: Callable[[TaskId, Future[Any]], None]
    cache: ResultCache
    open_secrets: Callable[[TaskId, Collection[str]], Awaitable[Mapping[str, str]]]
    pool: Any = None
    stopping: Event = field(default_factory=Event)


@dataclass(slots=True)
class _Attempt:
    """A task being executed."""

    message: TaskMessage
    execution: ExecutionContext
    worker_id: WorkerId
    log: TaskLog
    started: float = field(default_factory=perf_counter)
    details: dict[str, Any] = field(default_factory=dict)
    has_added: bool = False
    caching: Caching | None = None  # set if the result may be cached
    opened: Mapping[str, str] = field(default_factory=dict, repr=False)  # secrets by reference
    mask: Mask | None = field(default=None, repr=False)
    is_sealed: bool = False  # whether its input may hold references to secrets


async def execute(message: TaskMessage, execution: ExecutionContext, worker_id: WorkerId) -> TaskReport:
    ids = about(job_id=message.job_id, node_id=message.node_id, task_id=message.task_id)
    attempt = _Attempt(message, execution, worker_id, execution.logbook.open(message.task_id))
    with ids, _traced(message, worker_id) as span:
        try:
            with capturing(attempt.log):
                report = _masked(attempt, await _report_of(attempt))
            execution.handler_ended(message.task_id)
            # Checkpoints and added nodes are stored before the result.
            await execution.progress_buffer.all_saved(message.task_id)
            await _remember(attempt, report)
        finally:
            execution.progress_buffer.unmask(message.task_id)
            if (log_path := await execution.logbook.close(message.task_id)) is not None:
                attempt.details["log_path"] = log_path
        if report.error is not None:
            tracing.fail(span, report.error)
    return report


def _traced(message: TaskMessage, worker_id: WorkerId) -> AbstractContextManager[Any]:
    """Continue the trace in which the task was dispatched."""
    return tracing.span(
        f"execute_{message.handler}",
        message.trace_parent,
        job_id=message.job_id,
        node_id=message.node_id,
        task_id=message.task_id,
        worker_id=worker_id,
        queue=message.queue,
        handler=message.handler,
        attempt=message.retry_count,
    )


async def _report_of(attempt: _Attempt) -> TaskReport:
    message, execution, me = attempt.message, attempt.execution, asyncio.current_task()
    try:
        handler = execution.registry.get(message.handler)
        await _open_secrets(attempt)
        ctx = await _context(attempt)
        async with asyncio.timeout(message.timeout_seconds):
            return await _recalled(attempt, handler) or await _run(attempt, handler, ctx)
    except TimeoutError:
        error = f"timed out after {message.timeout_seconds:g} s"
        return _failed(attempt, HandlerResult(False, error_message=error, error_types=TIMED_OUT), timed_out=True)
    except Interrupted:
        return _ended(attempt, "given_back")
    except (DagmasterError, BrokenSeal) as error:
        return _failed(attempt, HandlerResult.failed(str(error), permanent=True))
    except BaseException as error:  # A task without a report would hang until its timeout.
        if is_callers_own(error, me):
            raise
        return _failed(attempt, HandlerResult.failed(f"cannot be executed: {type(error).__name__}: {error}"))


def _open(value: Any, attempt: _Attempt) -> Any:
    return open_all(value, attempt.opened) if attempt.is_sealed else value


async def _open_secrets(attempt: _Attempt) -> None:
    """Open the secrets right before the call; from then on, they are masked in all output of the task."""
    message, execution = attempt.message, attempt.execution
    attempt.is_sealed = may_hold_sealed(message.params, message.checkpoint_data)
    references = references_in(message.params, message.checkpoint_data) if attempt.is_sealed else ()
    if not references:
        return
    attempt.opened = await execution.open_secrets(message.task_id, references)
    attempt.mask = mask = Mask(attempt.opened)
    attempt.log.hide(mask.hidden)
    execution.progress_buffer.mask(message.task_id, mask)
    task_mask.set(mask.hide)


def _masked(attempt: _Attempt, report: TaskReport) -> TaskReport:
    """The report with references in place of secrets: a task that receives its output can open them again."""
    mask = attempt.mask
    if mask is None:
        return report
    if "metrics" in attempt.details:
        attempt.details["metrics"] = orjson.loads(mask.seal(orjson.dumps(attempt.details["metrics"])))
    return replace(
        report,
        output=mask.seal(report.output) if report.output is not None else None,
        error=mask.hide(report.error) if report.error is not None else None,
    )


async def _recalled(attempt: _Attempt, handler: Handler) -> TaskReport | None:
    """The cached result of an earlier task, if it is valid for this one."""
    if handler.caching is None:
        return None
    cached = await attempt.execution.cache.recall(attempt.message.task_id, handler.caching)
    if cached is None:
        attempt.caching = handler.caching
        return None
    at = cached.stored_at.astimezone(UTC).isoformat(timespec="seconds")
    attempt.log.write(f"[dagmaster: result taken from the cache; stored by job {cached.job_id} at {at}]\n")
    attempt.details["metrics"] = {"cached": True}
    return _ended(attempt, "completed", output=cached.output)


async def _remember(attempt: _Attempt, report: TaskReport) -> None:
    """Cache the result, except of a task that has added nodes to its job: they would be missing in other jobs."""
    if attempt.caching is None or attempt.has_added:
        return
    if report.kind == "completed" and report.output is not None:
        await attempt.execution.cache.remember(report.task_id, attempt.caching, report.output)


async def _run(attempt: _Attempt, handler: Handler, ctx: HandlerContext) -> TaskReport:
    """Run the handler in the loop, in a thread or in a process of its own."""
    execution = attempt.execution
    if handler.isolation == "process":
        outcome = await execution.children.run(handler, ctx, attempt.log.write)
        if outcome.usage is not None:
            attempt.details["peak_memory_bytes"] = outcome.usage.peak_memory_bytes
            attempt.details["cpu_seconds"] = outcome.usage.cpu_seconds
        if outcome.interrupted:
            return _ended(attempt, "given_back")
        return _normalised(attempt, outcome.result, outcome.output)
    if handler.in_loop:
        result = await call(handler, ctx, executor=None)
    else:
        result = await _in_thread(attempt, handler, ctx)
    output = encode_output(result.output, execution.max_output_bytes) if result.success else None
    return _normalised(attempt, result, output)


class _Watched:
    """An executor for a single call that exposes its future."""

    def __init__(self, threads: Executor) -> None:
        self._threads = threads
        self.future: Future[Any] | None = None

    def submit(self, *call: Any) -> Future[Any]:
        self.future = self._threads.submit(*call)
        return self.future


async def _in_thread(attempt: _Attempt, handler: Handler, ctx: HandlerContext) -> HandlerResult:
    watched = _Watched(attempt.execution.threads)
    try:
        return await call(handler, ctx, executor=watched)  # type: ignore[arg-type]
    except asyncio.CancelledError:
        await _wait_for_thread(attempt, watched.future)
        raise


async def _wait_for_thread(attempt: _Attempt, thread: Future[Any] | None) -> None:
    """Wait for a thread that was asked to end (`ctx.cancelled`); nothing can force it."""
    if thread is None or thread.cancelled() or thread.done():
        return
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.wait([in_loop(thread)], timeout=attempt.execution.stop_within_seconds)
    if not thread.done():
        attempt.execution.leave_behind(attempt.message.task_id, thread)


async def _context(attempt: _Attempt) -> HandlerContext:
    message, progress_buffer = attempt.message, attempt.execution.progress_buffer
    return HandlerContext(
        task_id=message.task_id,
        job_id=message.job_id,
        node_id=message.node_id,
        handler=message.handler,
        params=_open(_params(message), attempt),
        retry_count=message.retry_count,
        timeout_seconds=message.timeout_seconds,
        worker_id=attempt.worker_id,
        queue=message.queue,
        correlation_id=message.correlation_id,
        resumed_from=await _resumed_from(attempt) if message.checkpoint_phase is not None else None,
        progress_sink=progress_buffer.progress_sink(message.task_id),
        checkpoint_sink=progress_buffer.checkpoint_sink(message.task_id),
        add_sink=_add_sink(attempt),
        pool=attempt.execution.pool,
        stopping=attempt.execution.stopping,
    )


def _add_sink(attempt: _Attempt) -> Callable[[Sequence[bytes]], Future[None]]:
    store = attempt.execution.progress_buffer.add_sink(attempt.message.task_id)

    def add(slices: Sequence[bytes]) -> Future[None]:
        attempt.has_added = True
        return store(slices)

    return add


def _params(message: TaskMessage) -> dict[str, Any]:
    params = _decoded(message.params, "params")
    if not isinstance(params, dict):
        raise DagmasterError(f"malformed task: its params are a {type(params).__name__}, not an object")
    return params


async def _resumed_from(attempt: _Attempt) -> Checkpoint | None:
    """The newest checkpoint whose artifacts still exist; the others are discarded."""
    message = attempt.message
    saved: SavedCheckpoint | None = SavedCheckpoint(
        message.checkpoint_phase or "",
        message.checkpoint_data or b"{}",
        message.checkpoint_artifacts,
        message.checkpoint_id,
    )
    while saved is not None:
        artifacts = _decoded(saved.artifacts, "checkpoint's artifacts") if saved.artifacts else None
        described = (
            tuple(artifact for artifact in artifacts if isinstance(artifact, dict))
            if isinstance(artifacts, list)
            else ()
        )
        reason = await asyncio.to_thread(missing, described) if described else None
        if reason is None:
            data = _open(_decoded(saved.data, "checkpoint") or {}, attempt)
            return Checkpoint(saved.phase, data, described)
        attempt.log.write(f"[dagmaster: cannot resume from checkpoint {saved.phase}: {reason}]\n")
        if saved.checkpoint_id is None:
            return None
        saved = await attempt.execution.discard(message.task_id, saved.checkpoint_id, reason)
    return None


def _decoded(value: bytes, label: str) -> Any:
    try:
        return orjson.loads(value)
    except ValueError as error:
        raise DagmasterError(f"malformed task: its {label} cannot be read: {error}") from error


def _normalised(attempt: _Attempt, result: HandlerResult, output: bytes | None) -> TaskReport:
    if result.metrics:
        attempt.details["metrics"] = orjson.loads(encode_output(result.metrics, attempt.execution.max_output_bytes))
    if not result.success:
        return _failed(attempt, result)
    return _ended(attempt, "completed", output=output)


def _failed(attempt: _Attempt, result: HandlerResult, *, timed_out: bool = False) -> TaskReport:
    return _ended(
        attempt,
        "failed",
        error=redact_text(clean_text(result.error_message or NO_MESSAGE)),
        permanent=result.permanent,
        retry_after_seconds=result.retry_after_seconds,
        error_types=result.error_types,
        timed_out=timed_out,
    )


def _ended(attempt: _Attempt, kind: Any, **how: Any) -> TaskReport:
    message = attempt.message
    return TaskReport(
        message.task_id,
        message.job_id,
        message.node_id,
        kind,
        duration_ms=round((perf_counter() - attempt.started) * 1000),
        details=attempt.details,
        **how,
    )
