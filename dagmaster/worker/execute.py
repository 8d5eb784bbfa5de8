"""Run one task: find its handler, give it its time, and make a report of whatever happens."""

import asyncio
from concurrent.futures import Executor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import orjson

from dagmaster import tracing
from dagmaster.errors import DagmasterError
from dagmaster.handlers import HandlerContext, HandlerResult, Registry
from dagmaster.handlers.calling import call, encode_output
from dagmaster.handlers.contract import clean_text
from dagmaster.logs import about
from dagmaster.model.redact import redact_text
from dagmaster.queues.contract import TaskMessage, TaskReport
from dagmaster.worker.telling import Teller


@dataclass(frozen=True, slots=True)
class Bench:
    """What every task of a worker is executed with."""

    registry: Registry
    worker_id: str
    executor: Executor
    max_output_bytes: int
    teller: Teller


async def execute(message: TaskMessage, bench: Bench) -> TaskReport:
    ids = about(job_id=message.job_id, node_id=message.node_id, task_id=message.task_id)
    with ids, _traced(message, bench.worker_id) as span:
        report = await _execute(message, bench)
        if report.error is not None:
            tracing.fail(span, report.error)
    return report


def _traced(message: TaskMessage, worker_id: str) -> AbstractContextManager[Any]:
    """Goes on with the trace in which the task was dispatched; without an exporter the trace is still passed on."""
    if not tracing.is_on():
        return tracing.coming_from(message.trace_parent) if message.trace_parent else tracing.NOTHING
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


async def _execute(message: TaskMessage, bench: Bench) -> TaskReport:
    started = perf_counter()
    try:
        handler = bench.registry.get(message.handler)
        ctx = _context(message, bench)
        async with asyncio.timeout(message.timeout_seconds):
            result = await call(handler, ctx, executor=bench.executor)
        report = _report(message, result, bench.max_output_bytes)
    except TimeoutError:
        report = _failed(message, f"timed out after {message.timeout_seconds:g} s")
    except DagmasterError as error:
        report = _failed(message, str(error), permanent=True)
    except Exception as error:  # noqa: BLE001 - what is not reported stands still until its time is over
        report = _failed(message, f"the output cannot be encoded: {type(error).__name__}: {error}")
    duration_ms = round((perf_counter() - started) * 1000)
    return TaskReport(
        report.task_id,
        report.job_id,
        report.node_id,
        report.kind,
        report.output,
        report.error,
        report.permanent,
        report.retry_after_seconds,
        duration_ms,
    )


def _context(message: TaskMessage, bench: Bench) -> HandlerContext:
    return HandlerContext(
        task_id=message.task_id,
        job_id=message.job_id,
        node_id=message.node_id,
        handler=message.handler,
        params=_params(message),
        retry_count=message.retry_count,
        timeout_seconds=message.timeout_seconds,
        worker_id=bench.worker_id,
        correlation_id=message.correlation_id,
        checkpoint=_checkpoint(message),
        progress_sink=bench.teller.sink(message.task_id),
    )


def _params(message: TaskMessage) -> dict[str, Any]:
    params = _decoded(message.params, "params")
    if not isinstance(params, dict):
        raise DagmasterError(f"malformed task: its params are a {type(params).__name__}, not an object")
    return params


def _checkpoint(message: TaskMessage) -> dict[str, Any] | None:
    if message.checkpoint_phase is None:
        return None
    data = _decoded(message.checkpoint_data, "checkpoint") if message.checkpoint_data else {}
    return {"phase": message.checkpoint_phase, "data": data}


def _decoded(value: bytes, what: str) -> Any:
    try:
        return orjson.loads(value)
    except ValueError as error:
        raise DagmasterError(f"malformed task: its {what} cannot be read: {error}") from error


def _report(message: TaskMessage, result: HandlerResult, max_output_bytes: int) -> TaskReport:
    if not result.success:
        return _failed(
            message,
            result.error_message or "failed without a message",
            permanent=result.permanent,
            retry_after_seconds=result.retry_after_seconds,
        )
    output = encode_output(result.output, max_output_bytes)
    return TaskReport(message.task_id, message.job_id, message.node_id, "completed", output)


def _failed(
    message: TaskMessage, error: str, *, permanent: bool = False, retry_after_seconds: float | None = None
) -> TaskReport:
    return TaskReport(
        message.task_id,
        message.job_id,
        message.node_id,
        "failed",
        error=redact_text(clean_text(error)),
        permanent=permanent,
        retry_after_seconds=retry_after_seconds,
    )
