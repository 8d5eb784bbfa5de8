"""The handler contract and the registry."""

import asyncio
import functools
import hashlib
import logging
import threading
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from dagmaster.errors import DagmasterError, Invalid, Misconfigured, TaskOver, UnknownHandler
from dagmaster.handlers import (
    Context,
    Handler,
    HandlerContext,
    HandlerResult,
    Interrupted,
    Permanent,
    Registry,
    Retry,
    handler,
    register_handler,
    registry,
)
from dagmaster.handlers.artifacts import describe, missing
from dagmaster.handlers.contract import MESSAGE_LIMIT, Checkpoint, Progress, clean_text


class Size(BaseModel):
    width: int


def a_context(**fields) -> HandlerContext:
    return HandlerContext(**{"task_id": "7_a_0", "job_id": 7, "node_id": "a", "handler": "echo", **fields})


@pytest.fixture
def empty_default(monkeypatch):
    """The default registry, emptied during the test."""
    monkeypatch.setattr(registry, "_handlers", {})
    return registry


# --- the context


def test_context_is_an_alias_of_handler_context():
    assert Context is HandlerContext


def test_progress_without_a_sink_stays_on_the_context():
    ctx = a_context()
    ctx.progress(3, 4, "three")
    assert ctx.last_progress == Progress(3.0, 4.0, "three")


def test_progress_is_passed_to_the_sink():
    seen: list[Any] = []
    a_context(progress_sink=seen.append).progress(1)
    assert seen == [Progress(1.0, None, "")]


def test_progress_from_many_threads_reaches_the_sink_serially():
    inside, overlaps, seen = [], [], []

    def sink(progress):
        inside.append(progress)
        overlaps.append(len(inside) > 1)
        seen.append(progress.current)
        inside.pop()

    ctx = a_context(progress_sink=sink)

    def report():
        for n in range(200):
            ctx.progress(n)

    threads = [threading.Thread(target=report) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 1600
    assert not any(overlaps)


@pytest.mark.parametrize("current, total", [(float("nan"), 1), (1, float("inf"))])
def test_nan_progress_is_dropped(current, total):
    ctx = a_context()
    ctx.progress(current, total)
    assert ctx.last_progress is None


def test_non_numeric_progress_raises():
    with pytest.raises(ValueError):
        a_context().progress("half")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "progress, percent",
    [
        (Progress(1, 3), 33.3),
        (Progress(5, 4), 100.0),
        (Progress(-1, 4), 0.0),
        (Progress(1), None),
        (Progress(1, 0), None),
    ],
)
def test_percent_is_clamped_and_unknown_without_a_total(progress, percent):
    assert progress.percent == percent


def test_a_checkpoint_without_a_sink_stays_on_the_context():
    ctx = a_context()
    ctx.checkpoint(2, {"rows": 10})
    assert ctx.last_checkpoint == Checkpoint("2", {"rows": 10})


def test_a_checkpoint_is_a_copy():
    seen: list[Any] = []
    done = [1]
    a_context(checkpoint_sink=seen.append).checkpoint("load", {"done": done})
    done.append(2)
    assert seen == [Checkpoint("load", {"done": [1]})]


def test_a_checkpoint_in_a_thread_waits_until_it_is_stored():
    stored: Future[Any] = Future()
    ctx = a_context(checkpoint_sink=lambda _: stored)
    threading.Timer(0.05, stored.set_result, [None]).start()
    ctx.checkpoint("load")
    assert stored.done()


async def test_a_checkpoint_in_a_coroutine_is_awaited():
    stored: Future[Any] = Future()
    saving = a_context(checkpoint_sink=lambda _: stored).checkpoint("load")
    asyncio.get_running_loop().call_later(0.05, stored.set_result, None)
    await saving
    assert stored.done()


def test_a_refused_checkpoint_raises_in_its_handler():
    stored: Future[Any] = Future()
    stored.set_exception(TaskOver("task 7_a_0 is over"))
    with pytest.raises(TaskOver):
        a_context(checkpoint_sink=lambda _: stored).checkpoint("load")


def test_after_a_stop_the_next_checkpoint_interrupts_the_handler():
    seen: list[Any] = []
    ctx = a_context(checkpoint_sink=seen.append)
    ctx.checkpoint("one")
    ctx.stopping.set()
    with pytest.raises(Interrupted):
        ctx.checkpoint("two")
    assert [checkpoint.phase for checkpoint in seen] == ["one", "two"]


def test_an_interruption_is_not_caught_by_except_exception():
    assert not issubclass(Interrupted, Exception)


@pytest.mark.parametrize(
    ("reached", "left"), [(None, ["a", "b", "c"]), ("a", ["b", "c"]), ("c", []), ("renamed", ["a", "b", "c"])]
)
def test_remaining_returns_the_phases_after_the_last_checkpoint(reached, left):
    resumed = Checkpoint(reached, {}) if reached else None
    assert a_context(resumed_from=resumed).remaining(["a", "b", "c"]) == left


def test_an_artifact_must_exist_when_its_checkpoint_is_saved(tmp_path):
    seen: list[Any] = []
    ctx = a_context(checkpoint_sink=seen.append)
    with pytest.raises(Invalid, match="is not there"):
        ctx.checkpoint("load", artifacts=[str(tmp_path / "absent.tif")])
    assert seen == []
    file = tmp_path / "there.tif"
    file.write_bytes(b"12345")
    ctx.checkpoint("load", artifacts=[file, "s3://bucket/key"])
    assert seen[0].artifacts == ({"path": str(file), "size_bytes": 5}, {"path": "s3://bucket/key"})


@pytest.mark.parametrize(
    ("claims", "problem"),
    [
        ({"size_bytes": 4}, "has 5 bytes, not 4"),
        ({"sha256": "00"}, "different content"),
        ({"path": ""}, "a mapping with `path`"),
    ],
)
def test_an_artifact_must_match_its_description(tmp_path, claims, problem):
    file = tmp_path / "there.tif"
    file.write_bytes(b"12345")
    with pytest.raises(Invalid, match=problem):
        a_context().checkpoint("load", artifacts=[{"path": str(file), **claims}])


def test_a_checkpoint_whose_file_is_gone_cannot_be_resumed(tmp_path):
    file = tmp_path / "there.tif"
    file.write_bytes(b"12345")
    digest = hashlib.sha256(b"12345").hexdigest()
    artifacts = [describe({"path": file.as_posix(), "sha256": digest}), describe({"path": "s3://bucket/key"})]
    assert missing(artifacts) is None
    file.write_bytes(b"54321")
    assert missing(artifacts) == f"its artifact {file} has different content (sha256)"
    file.unlink()
    assert missing(artifacts) == f"its artifact {file} is not there"


def test_a_new_context_is_not_cancelled():
    ctx = a_context()
    assert not ctx.cancelled.is_set()
    ctx.cancelled.set()
    assert ctx.cancelled.is_set()


def test_log_records_carry_the_ids_and_the_callers_extra(caplog):
    with caplog.at_level(logging.INFO):
        a_context().logger.info("hello", extra={"tile": 5})
    record = caplog.records[0]
    assert (record.job_id, record.node_id, record.task_id, record.tile) == (7, "a", "7_a_0", 5)
    assert record.name == "dagmaster.handler.echo"


def test_the_repr_of_a_context_shows_no_params():
    assert "hunter2" not in repr(
        a_context(params={"password": "hunter2"}, resumed_from=Checkpoint("a", {"token": "hunter2"}))
    )


def test_strings_are_cleaned_for_postgresql():
    assert clean_text("a\0b\ud800c") == "a\ufffdb\ufffdc"
    assert clean_text("\ud83d\ude00") == "😀"
    assert clean_text("x" * 3000) == "x" * (MESSAGE_LIMIT - 1) + "…"


# --- results


def test_ok_and_failed_build_results():
    assert HandlerResult.ok({"a": 1}) == HandlerResult(success=True, output={"a": 1})
    assert HandlerResult.ok().output == {}
    assert HandlerResult.failed("no", permanent=True) == HandlerResult(False, error_message="no", permanent=True)


@pytest.mark.parametrize("delay", [-1, float("nan"), float("inf"), 10**9])
def test_a_delay_too_large_for_a_timer_is_refused(delay):
    with pytest.raises(Invalid, match="0 and 604800 seconds"):
        Retry(after=delay)
    with pytest.raises(Invalid):
        HandlerResult(False, retry_after_seconds=delay)


def test_retry_and_permanent_have_default_messages():
    assert str(Retry()) == "The handler requests a retry."
    assert str(Retry("the tide is out", after=timedelta(seconds=5))) == "the tide is out"
    assert "cannot succeed" in str(Permanent())
    assert issubclass(Retry, DagmasterError) and issubclass(Permanent, DagmasterError)


# --- the decorator


def test_the_decorator_returns_the_function_unchanged(empty_default):
    @handler("double", queue="light", timeout_seconds=5)
    def double(ctx):
        return 2

    registered = empty_default.get("double")
    assert registered.function is double
    assert (registered.queue, registered.timeout_seconds, registered.in_loop) == ("light", 5, False)


def test_register_handler_is_an_alias():
    assert register_handler is handler


@pytest.mark.parametrize("decorate", [handler, handler(), handler(None)])
def test_the_name_defaults_to_the_functions_own(empty_default, decorate):
    @decorate
    def resample(ctx): ...

    assert empty_default.names() == ["resample"]


def test_async_functions_run_in_the_loop_unless_requested_otherwise():
    async def coroutine(ctx): ...

    async def generator(ctx):
        yield

    class Callable:
        async def __call__(self, ctx): ...

    def plain(ctx): ...

    functions: list[Any] = [coroutine, generator, Callable(), functools.partial(coroutine), plain]
    assert [Handler("x", function).in_loop for function in functions] == [True, True, True, True, False]
    assert [Handler("x", function, isolation="thread").in_loop for function in functions] == [False] * 5


def test_the_params_model_is_passed_if_the_function_takes_it():
    assert Handler("x", lambda ctx, params: None, params=Size).takes_params
    assert not Handler("x", lambda ctx: None, params=Size).takes_params


@pytest.mark.parametrize(
    "function, options, message",
    [
        (lambda: None, {}, "should take"),
        (lambda ctx, params: None, {}, "params=MODEL"),
        (lambda ctx, a, b: None, {"params": Size}, "should take"),
        (lambda ctx, *, needed: None, {}, "should take"),
        (lambda ctx: None, {"isolation": "magic"}, "isolation"),
        (lambda ctx: None, {"memory_mb": 100}, "memory_mb must be above 0 and requires isolation='process'"),
        (lambda ctx: None, {"isolation": "process", "memory_mb": 0}, "above 0"),
        (lambda ctx: None, {"timeout_seconds": 0}, "timeout_seconds"),
        (lambda ctx: (yield), {}, "plain generator"),
    ],
)
def test_an_unusable_handler_is_refused_at_registration(function, options, message):
    with pytest.raises(Misconfigured, match=message):
        Handler("x", function, **options)


@pytest.mark.parametrize("name", ["", " x", "x" * 129, "<lambda>", 5])
def test_an_invalid_name_is_refused(name):
    with pytest.raises(Misconfigured, match="needs a name"):
        Handler(name, lambda ctx: None)


# --- the registry


def test_an_unknown_name_error_suggests_near_matches():
    registry = Registry()
    registry.register(Handler("raster.validate", lambda ctx: None))
    with pytest.raises(UnknownHandler, match=r"no handler is named 'raster.valdate'; did you mean 'raster.validate'\?"):
        registry.get("raster.valdate")


def test_an_unknown_name_without_near_matches_lists_what_is_loaded():
    registry = Registry()
    with pytest.raises(UnknownHandler, match="loaded are none"):
        registry.get("os.system")
    for number in range(12):
        registry.register(Handler(f"h{number:02}", lambda ctx: None))
    with pytest.raises(UnknownHandler, match=r"h00, .*h09 and 2 more"):
        registry.get("os.system")


def test_queues_maps_each_handler_to_its_queue():
    registry = Registry()
    registry.register(Handler("b", lambda ctx: None, queue="heavy"))
    registry.register(Handler("a", lambda ctx: None))
    assert registry.names() == ["a", "b"]
    assert registry.queues() == {"a": None, "b": "heavy"}


def test_the_schema_of_the_parameters_is_generated_once(monkeypatch):
    made = Handler("measure", lambda ctx, size: None, params=Size)
    first = made.contract().params
    monkeypatch.setattr(Size, "model_json_schema", lambda **_: pytest.fail("generated again"))
    assert made.contract().params is first
    assert made.contract(in_full=False).params is None


def test_a_schema_that_could_not_be_generated_is_attempted_again():
    answers = iter([Misconfigured("a type is not defined yet"), {"type": "object"}])

    def schema():
        answer = next(answers)
        if isinstance(answer, Misconfigured):
            raise answer
        return answer

    made = Handler("measure", lambda ctx: None, schema=schema)
    assert made.contract().params is None
    assert made.contract().params == {"type": "object"}


def test_two_functions_cannot_share_a_name(empty_default):
    @handler("twin")
    def first(ctx): ...

    with pytest.raises(Misconfigured, match=r"two handlers are named 'twin': .*first and .*second"):

        @handler("twin")
        def second(ctx): ...

    assert empty_default.get("twin").function is first


def test_two_functions_from_one_factory_cannot_share_a_name():
    def factory():
        return lambda ctx: None

    registry = Registry()
    registry.register(Handler("twin", factory()))
    with pytest.raises(Misconfigured):
        registry.register(Handler("twin", factory()))


def test_the_same_function_may_be_registered_again():
    def same(ctx): ...

    registry = Registry()
    registry.register(Handler("same", same))
    registry.register(Handler("same", same, queue="heavy"))
    assert registry.queues() == {"same": "heavy"}


@pytest.mark.parametrize(
    "first, second",
    [(("cell_1", "__main__"), ("cell_2", "__main__")), (("flow.py", "__main__"), ("flow.py", "flow"))],
    ids=["a notebook's cell run again", "a script imported under its name"],
)
def test_a_redefined_function_replaces_the_old_one(first, second):
    registry = Registry()
    for file, module in (first, second):
        names = {"__name__": module}
        exec(compile("def load(ctx): ...", file, "exec"), names)
        registry.register(Handler("load", names["load"]))
    assert registry.get("load").function is names["load"]
