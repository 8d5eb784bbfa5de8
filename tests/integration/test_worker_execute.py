"""One task, from message to report."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest
from fleet import handlers, wait_until
from pydantic import BaseModel

from dagmaster.handlers import Checkpoint, HandlerContext, HandlerResult, Permanent, Registry, Retry
from dagmaster.ids import JobId, TaskId, WorkerId
from dagmaster.queues.contract import TaskMessage, TaskReport
from dagmaster.settings import load_settings
from dagmaster.tasklogs.factory import open_task_logs
from dagmaster.worker.execute import ExecutionContext, execute
from dagmaster.worker.logbook import Logbook
from dagmaster.worker.processes.children import Children
from dagmaster.worker.progress import ProgressBuffer
from dagmaster.worker.result_cache import ResultCache

WORKER = WorkerId("w")


@pytest.fixture
def pool() -> Iterator[Executor]:
    with ThreadPoolExecutor(4) as executor:
        yield executor


def an_execution(known: Registry, pool: Executor, **more: Any) -> ExecutionContext:
    async def no_checkpoint(*_: Any) -> None:
        return None

    limit = more.pop("max_output_bytes", 1_000_000)
    fields = {
        "registry": known,
        "threads": pool,
        "children": Children(known, (), max_output_bytes=limit),
        "progress_buffer": ProgressBuffer(limit),
        "logbook": Logbook(open_task_logs(load_settings()), 1_000_000),
        "max_output_bytes": limit,
        "stop_within_seconds": 0.2,
        "discard": no_checkpoint,
        "handler_ended": lambda _: None,
        "leave_behind": lambda *_: None,
        "cache": ResultCache(lambda: None),
        "open_secrets": no_checkpoint,
    }
    return ExecutionContext(**{**fields, **more})


def message(handler: str, params: bytes = b"{}", **more: Any) -> TaskMessage:
    fields = {"timeout_seconds": 10.0, "retry_count": 0, "dispatched_at": datetime.now(UTC), **more}
    return TaskMessage(TaskId("7_work_0"), JobId(7), "work", handler, "q", params, **fields)


async def run(pool: Executor, function: Callable[..., Any], params: bytes = b"{}", **more: Any) -> TaskReport:
    limit = more.pop("max_output_bytes", 1_000_000)
    execution = an_execution(handlers(work=function), pool, max_output_bytes=limit)
    saver = asyncio.create_task(save_all(execution.progress_buffer))
    try:
        return await execute(message("work", params, **more), execution, WorkerId("worker-1"))
    finally:
        saver.cancel()


async def save_all(progress_buffer: ProgressBuffer) -> None:
    while True:
        await progress_buffer.has_unsaved.wait()
        while (unsaved := progress_buffer.first_unsaved()) is not None:
            progress_buffer.settle(unsaved)


async def test_a_handler_receives_its_task(pool: Executor) -> None:
    seen: list[HandlerContext] = []

    async def look(ctx: HandlerContext) -> None:
        seen.append(ctx)

    report = await run(
        pool, look, b'{"a": 1}', retry_count=3, correlation_id="c", checkpoint_phase="two", checkpoint_data=b'{"n": 1}'
    )
    [ctx] = seen
    assert (ctx.task_id, ctx.job_id, ctx.node_id, ctx.handler) == ("7_work_0", 7, "work", "work")
    assert (ctx.params, ctx.retry_count, ctx.timeout_seconds, ctx.worker_id) == ({"a": 1}, 3, 10.0, "worker-1")
    assert (ctx.correlation_id, ctx.resumed_from) == ("c", Checkpoint("two", {"n": 1}))
    assert (report.task_id, report.job_id, report.node_id, report.kind) == ("7_work_0", 7, "work", "completed")
    assert report.output == b"{}"
    assert report.duration_ms is not None and report.duration_ms < 60_000


async def test_an_unknown_handler_is_a_permanent_failure(pool: Executor) -> None:
    report = await execute(message("ecko"), an_execution(handlers(), pool), WORKER)
    assert (report.kind, report.permanent) == ("failed", True)
    assert report.error is not None and "'ecko'" in report.error and "'echo'" in report.error


@pytest.mark.parametrize("params", [b"[1, 2]", b"null", b'"text"', b"{", b"", b"\xff"])
async def test_malformed_params_are_a_permanent_failure(pool: Executor, params: bytes) -> None:
    report = await execute(message("echo", params), an_execution(handlers(), pool), WORKER)
    assert (report.kind, report.permanent) == ("failed", True)
    assert "malformed" in (report.error or "")


async def test_a_malformed_checkpoint_is_a_failure_and_does_not_hang_the_task(pool: Executor) -> None:
    bad = message("echo", checkpoint_phase="x", checkpoint_data=b"{")
    report = await execute(bad, an_execution(handlers(), pool), WORKER)
    assert report.kind == "failed"


class Strange(BaseModel):
    value: Any = None

    def model_dump(self, **_: Any) -> Any:
        raise RuntimeError("cannot be dumped")


class Exploding:
    def tolist(self) -> Any:
        raise ZeroDivisionError


OUTPUTS: dict[str, Any] = {
    "an object": {"x": object()},
    "a strange key": {(1, 2): 3},
    "a key with NUL": {"a\0b": object()},
    "half a character": {"a\ud800": object()},
    "a model that fails": {"m": Strange()},
    "an object that fails": {"m": Exploding()},
    "a generator": {"g": (n for n in range(3))},
}


@pytest.mark.parametrize("name", OUTPUTS)
async def test_an_output_that_is_not_json_fails_with_a_reason(pool: Executor, name: str) -> None:
    async def odd(ctx: HandlerContext) -> Any:
        return OUTPUTS[name]

    report = await run(pool, odd)
    assert report.kind == "failed"
    assert report.error
    text = orjson.dumps(report.error).decode()  # Values that cannot be encoded cannot be reported either.
    assert "\\u0000" not in text


async def test_a_circular_output_fails_with_a_reason(pool: Executor) -> None:
    circle: dict[str, Any] = {}
    circle["me"] = circle

    async def round_and_round(ctx: HandlerContext) -> Any:
        return circle

    report = await run(pool, round_and_round)
    assert (report.kind, report.permanent) == ("failed", True)


async def test_an_output_that_is_too_large_is_a_permanent_failure(pool: Executor) -> None:
    def large(ctx: HandlerContext) -> dict[str, str]:
        return {"x": "y" * 2000}

    report = await run(pool, large, max_output_bytes=1000)
    assert (report.kind, report.permanent) == ("failed", True)
    assert "the limit is 1,000" in (report.error or "")


async def test_nul_characters_in_an_output_are_replaced(pool: Executor) -> None:
    def nul(ctx: HandlerContext) -> dict[str, str]:
        return {"a\0": "b\0c", "text": "\\u0000"}

    report = await run(pool, nul)
    assert orjson.loads(report.output or b"") == {"a\ufffd": "b\ufffdc", "text": "\\u0000"}


async def test_a_task_that_exceeds_its_timeout_is_ended(pool: Executor) -> None:
    async def endless(ctx: HandlerContext) -> None:
        await asyncio.sleep(60)

    report = await run(pool, endless, timeout_seconds=0.05)
    assert (report.kind, report.error, report.permanent) == ("failed", "timed out after 0.05 s", False)
    assert report.duration_ms is not None and report.duration_ms >= 50


async def test_a_timeout_error_of_the_handler_is_its_own_failure(pool: Executor) -> None:
    async def impatient(ctx: HandlerContext) -> None:
        async with asyncio.timeout(0.01):
            await asyncio.sleep(60)

    report = await run(pool, impatient)
    assert report.kind == "failed" and "TimeoutError" in (report.error or "")


async def test_a_thread_is_told_that_it_timed_out(pool: Executor) -> None:
    entered, waits = threading.Event(), list[bool]()

    def patient(ctx: HandlerContext) -> None:
        entered.set()
        waits.append(ctx.cancelled.wait(60))

    while not entered.is_set():  # On a busy machine the time may be over before the thread starts; then it never does.
        report = await run(pool, patient, timeout_seconds=0.5)
        assert report.error == "timed out after 0.5 s"
    pool.shutdown(wait=True)
    assert waits == [True]


async def test_plain_functions_do_not_block_the_event_loop(pool: Executor) -> None:
    entered, may_go = threading.Semaphore(0), threading.Event()

    def wait(ctx: HandlerContext) -> None:
        entered.release()
        assert may_go.wait(60)

    running = [asyncio.create_task(run(pool, wait)) for _ in range(4)]
    for _ in running:  # All are in their threads, and this loop still runs.
        await wait_until(lambda: entered.acquire(blocking=False))
    may_go.set()
    assert [report.kind for report in await asyncio.gather(*running)] == ["completed"] * 4


async def test_each_kind_of_failure_is_reported_as_such(pool: Executor) -> None:
    async def permanent(ctx: HandlerContext) -> None:
        raise Permanent("never")

    async def later(ctx: HandlerContext) -> None:
        raise Retry("not yet", after=2.5)

    def result(ctx: HandlerContext) -> HandlerResult:
        return HandlerResult.failed("no", permanent=True)

    async def crash(ctx: HandlerContext) -> None:
        raise ValueError("broken\0 text")

    async def leave(ctx: HandlerContext) -> None:
        raise SystemExit(3)

    reports = [await run(pool, function) for function in (permanent, later, result, crash, leave)]
    assert [report.kind for report in reports] == ["failed"] * 5
    assert [report.permanent for report in reports] == [True, False, True, False, False]
    assert [report.retry_after_seconds for report in reports] == [None, 2.5, None, None, None]
    assert [report.error for report in reports] == [
        "never",
        "not yet",
        "no",
        "ValueError: broken\ufffd text",
        "SystemExit: 3",
    ]


async def test_a_generator_yields_progress_checkpoints_and_its_result(pool: Executor) -> None:
    async def phases(ctx: HandlerContext) -> AsyncIterator[dict[str, Any]]:
        yield {"type": "progress", "current": 1, "total": 2}
        yield {"type": "checkpoint", "phase": "one", "data": {"a": 1}}
        yield {"type": "result", "output": {"done": True}}

    assert (await run(pool, phases)).output == b'{"done":true}'


async def test_a_cancelled_task_reports_nothing(pool: Executor) -> None:
    entered = asyncio.Event()

    async def wait(ctx: HandlerContext) -> None:
        entered.set()
        await asyncio.sleep(60)

    running = asyncio.create_task(run(pool, wait))
    await entered.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_secrets_in_an_error_are_redacted(pool: Executor) -> None:
    def careless(ctx: HandlerContext) -> None:
        raise RuntimeError("cannot reach postgresql://me:hush@db/x?password=hush")

    report = await run(pool, careless)
    assert report.error is not None
    assert "hush" not in report.error
    assert "cannot reach postgresql://me:***@db" in report.error
