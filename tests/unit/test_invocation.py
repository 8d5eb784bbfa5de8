"""Whatever a handler does, the worker gets a result."""

import asyncio
import contextvars
import inspect
import logging
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel, Field

from dagmaster.handlers import Handler, HandlerContext, HandlerResult, Permanent, Retry, call
from dagmaster.model.retry import WRONG_CALL

LIMIT = 1_000_000


class Size(BaseModel):
    width: int
    height: int = Field(default=1, ge=1)


@dataclass
class Point:
    x: float
    label: Any = None


def a_context(**fields) -> HandlerContext:
    return HandlerContext(**{"task_id": "7_a_0", "job_id": 7, "node_id": "a", "handler": "h", **fields})


async def run(function, ctx=None, **options) -> HandlerResult:
    return await call(Handler("h", function, **options), ctx or a_context(), executor=None)


def raising(error):
    """The same handler, in the event loop and in a thread."""

    async def in_loop(ctx):
        raise error

    def in_thread(ctx):
        raise error

    return [in_loop, in_thread]


# --- results


@pytest.mark.parametrize(
    "returned, output",
    [
        (None, {}),
        ({"a": 1}, {"a": 1}),
        (Size(width=2), {"width": 2, "height": 1}),
        (Point(1.5), {"x": 1.5, "label": None}),
        ([1, 2], {"result": [1, 2]}),
        (False, {"result": False}),
        ("text", {"result": "text"}),
        (HandlerResult.ok(), {}),
        (HandlerResult(success=True), {}),
        (HandlerResult(success=True, output=Size(width=2)), {"width": 2, "height": 1}),  # type: ignore[arg-type]
    ],
)
async def test_a_handlers_return_value_becomes_its_output(returned, output):
    async def in_loop(ctx):
        return returned

    def in_thread(ctx):
        return returned

    assert (await run(in_loop)).output == output
    assert (await run(in_thread)).output == output


async def test_a_result_object_is_used_unchanged():
    result = HandlerResult(False, error_message="later", metrics={"rows": 3}, retry_after_seconds=5)
    assert await run(lambda ctx: result) == result


async def test_a_failure_without_a_message_gets_one():
    result = await run(lambda ctx: HandlerResult(False))
    assert result.error_message == "the handler reported a failure without a message"


# --- threads and loops


async def test_a_plain_function_does_not_block_the_loop():
    release = threading.Event()
    task = asyncio.create_task(run(lambda ctx: release.wait(60)))
    await asyncio.sleep(0.01)
    release.set()
    assert (await task).output == {"result": True}


async def test_a_plain_function_runs_in_the_given_executor():
    with ThreadPoolExecutor(thread_name_prefix="mine") as executor:
        handler = Handler("h", lambda ctx: threading.current_thread().name)
        result = await call(handler, a_context(), executor=executor)
    assert result.output["result"].startswith("mine")


async def test_a_plain_function_sees_the_callers_context_variables():
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")
    variable.set("seen")
    assert (await run(lambda ctx: variable.get())).output == {"result": "seen"}


async def test_an_async_handler_shares_the_loop():
    async def handler(ctx):
        return asyncio.get_running_loop()

    assert (await run(handler)).output["result"] is asyncio.get_running_loop()


async def test_an_async_handler_can_have_its_own_thread_and_loop():
    async def handler(ctx):
        return [threading.current_thread() is threading.main_thread(), asyncio.get_running_loop()]

    in_main_thread, loop = (await run(handler, isolation="thread")).output["result"]
    assert not in_main_thread
    assert loop is not asyncio.get_running_loop()


async def test_a_coroutine_returned_by_a_plain_function_is_awaited():
    async def hidden(ctx):
        return {"found": True}

    def unmarked(ctx):
        return hidden(ctx)

    assert (await run(unmarked)).output == {"found": True}


# --- params


async def test_params_are_validated_and_passed():
    def area(ctx, params):
        return params.width * params.height

    assert (await run(area, a_context(params={"width": "6"}), params=Size)).output == {"result": 6}


async def test_invalid_params_fail_permanently_and_name_the_fields():
    result = await run(lambda ctx: None, a_context(params={"width": "s3cret", "height": 0}), params=Size)
    assert result.permanent
    assert result.error_message.startswith("invalid params: width: Input should be a valid integer")
    assert "; height: Input should be greater than or equal to 1" in result.error_message
    assert "s3cret" not in result.error_message


# --- failures


@pytest.mark.parametrize("function", raising(ValueError("no bands")))
async def test_an_exception_becomes_a_failure_with_the_traceback_in_the_log(function, caplog):
    result = await run(function)
    assert result == HandlerResult.failed("ValueError: no bands")
    assert "Traceback" in caplog.text
    assert caplog.records[0].task_id == "7_a_0"


@pytest.mark.parametrize("function", raising(Permanent("the file is no raster")))
async def test_permanent_is_not_retried(function, caplog):
    assert await run(function) == HandlerResult.failed("the file is no raster", permanent=True)
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("function", raising(Retry("the source is busy", after=30)))
async def test_retry_carries_its_delay(function):
    result = await run(function)
    assert result == HandlerResult(False, error_message="the source is busy", retry_after_seconds=30)


@pytest.mark.parametrize("function", raising(SystemExit(3)))
async def test_a_handler_that_exits_has_failed(function):
    assert (await run(function)).error_message == "SystemExit: 3"


class Panic(BaseException):
    """Raised by libraries written in Rust."""


@pytest.mark.parametrize("function", raising(Panic("index out of bounds")))
async def test_a_panic_is_a_failure(function):
    assert (await run(function)).error_message == "Panic: index out of bounds"


@pytest.mark.parametrize("function", raising(StopIteration()))
async def test_stop_iteration_is_a_failure_and_does_not_hang(function):
    async with asyncio.timeout(60):
        result = await run(function)
    assert "StopIteration" in result.error_message


@pytest.mark.parametrize("function", raising(asyncio.CancelledError()))
async def test_a_cancellation_without_a_request_is_a_failure(function):
    assert (await run(function)).error_message == "CancelledError"


@pytest.mark.parametrize("kind", [KeyboardInterrupt, GeneratorExit, SystemExit])
@pytest.mark.parametrize("in_thread", [False, True])
def test_exceptions_that_usually_end_the_process_are_failures_of_the_handler(kind, in_thread):
    result = asyncio.run(run(raising(kind())[in_thread]))
    assert not result.success
    assert kind.__name__ in result.error_message


@pytest.mark.parametrize("kind", [KeyboardInterrupt, GeneratorExit, SystemExit, asyncio.CancelledError, Panic])
async def test_a_generator_may_raise_anything(kind):
    async def phases(ctx):
        yield {"type": "progress", "current": 1}
        raise kind

    with taking_ctrl_c():
        assert kind.__name__ in (await run(phases)).error_message


@contextmanager
def taking_ctrl_c(handler=lambda *_: None):
    """As in every command, and in `asyncio.run`."""
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def test_keyboard_interrupt_propagates_if_it_is_not_expected():
    with asyncio.Runner() as runner, taking_ctrl_c(signal.default_int_handler):  # In the background it is ignored.
        loop = runner.get_loop()
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(run(raising(KeyboardInterrupt())[0]))


def test_a_dropped_call_is_not_a_failure(caplog):
    async def forever(ctx):
        await asyncio.Event().wait()

    with asyncio.Runner() as runner:
        calling = runner.get_loop().create_task(run(forever))
        runner.run(asyncio.sleep(0))
        calling.get_coro().close()
    assert "handler h failed" not in caplog.text


async def test_an_error_message_is_truncated_and_storable():
    result = await run(raising(ValueError("\0" + "x" * 5000))[0])
    assert len(result.error_message) == 2000
    assert result.error_message.startswith("ValueError: \ufffdxxx")


async def test_an_exception_that_cannot_be_printed_is_named():
    class Shy(Exception):
        def __str__(self):
            raise RuntimeError

    assert (await run(raising(Shy())[0])).error_message == "Shy"


async def test_an_exception_group_names_its_first_members():
    group = ExceptionGroup("unhandled errors in a TaskGroup", [ValueError("left"), KeyError("right")])
    message = (await run(raising(group)[0])).error_message
    assert message.endswith("ValueError: left; KeyError: 'right'")


async def test_cancelling_the_call_cancels_an_async_handler():
    entered, stopped = asyncio.Event(), []

    async def handler(ctx):
        entered.set()
        try:
            await asyncio.sleep(60)
        finally:
            stopped.append(True)

    task = asyncio.create_task(run(handler))
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert stopped


async def test_cancelling_the_call_tells_a_thread_to_stop():
    entered, stopped = threading.Event(), threading.Event()

    def handler(ctx):
        entered.set()
        if ctx.cancelled.wait(60):
            stopped.set()

    task = asyncio.create_task(run(handler))
    assert await asyncio.to_thread(entered.wait, 60)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(stopped.wait, 60)


async def test_a_timeout_around_the_call_is_raised():
    async def handler(ctx):
        await asyncio.sleep(10)

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await run(handler)


# --- generators


async def test_a_generator_checkpoints_reports_and_ends_with_its_last_result():
    checkpoints: list[Any] = []
    reports: list[Any] = []

    async def handler(ctx):
        yield {"type": "checkpoint", "phase": "read", "data": {"rows": 3}}
        yield {"type": "progress", "current": 1, "total": 2, "message": "half"}
        yield {"type": "result", "output": {"first": True}}
        yield {"type": "result", "output": {"last": True}, "metrics": {"rows": 3}}

    ctx = a_context(checkpoint_sink=checkpoints.append, progress_sink=reports.append)
    assert await run(handler, ctx) == HandlerResult(True, {"last": True}, metrics={"rows": 3})
    assert [(checkpoint.phase, checkpoint.data) for checkpoint in checkpoints] == [("read", {"rows": 3})]
    assert [(report.current, report.total, report.message) for report in reports] == [(1, 2, "half")]


@pytest.mark.parametrize("isolation", ["auto", "thread"])
async def test_a_generator_without_a_result_is_a_retryable_failure(isolation):
    async def handler(ctx):
        yield {"type": "progress", "current": 1}

    result = await run(handler, isolation=isolation)
    assert result == HandlerResult.failed("the handler ended without yielding a result")


async def test_a_generator_may_yield_a_failure():
    async def with_a_dict(ctx):
        yield {"type": "result", "error_message": "half of it is missing", "permanent": True}

    async def with_an_object(ctx):
        yield HandlerResult.failed("half of it is missing", permanent=True)

    expected = HandlerResult.failed("half of it is missing", permanent=True)
    assert await run(with_a_dict) == expected
    assert await run(with_an_object) == expected


@pytest.mark.parametrize(
    "item, described",
    [
        ({"type": "reslt", "output": {}}, "a dict with type, output"),
        ({"type": "checkpoint", "data": {}}, "a dict with type, data"),
        ({"type": "result", "rows": 3}, "a dict with type, rows"),
        (5, "a int"),
    ],
)
async def test_a_generator_that_yields_an_unknown_value_is_told_the_valid_ones(item, described):
    async def handler(ctx):
        yield item

    result = await run(handler)
    assert result.permanent
    assert f"yielded {described}; it may yield" in result.error_message


async def test_a_generator_that_raises_is_closed_and_has_failed():
    async def handler(ctx):
        yield {"type": "result", "output": {}}
        raise ValueError("too late")

    assert await run(handler) == HandlerResult.failed("ValueError: too late")


async def test_failures_of_handlers_are_logged_as_errors(caplog):
    with caplog.at_level(logging.ERROR):
        await run(raising(ValueError("x"))[0])
    assert [record.getMessage() for record in caplog.records] == ["handler h failed"]


async def test_mismatched_arguments_are_distinguished_from_a_type_error_inside() -> None:
    def needs_more(ctx, other):
        return {}

    async def needs_nothing():
        return {}

    for function in (needs_more, needs_nothing):  # As left by a decorator that hides the wrapped function.
        vars(function)["__signature__"] = inspect.signature(lambda ctx: None)

    def wrong_inside(ctx):
        return len(5)  # type: ignore[arg-type]

    for function in (needs_more, needs_nothing):
        assert WRONG_CALL in (await run(function)).error_types
    inside = await run(wrong_inside)
    assert inside.error_types[0] == "TypeError" and WRONG_CALL not in inside.error_types
