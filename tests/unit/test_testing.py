"""Parts of the testing package: clock, faults, record, and handlers called alone."""

import inspect
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

import dagmaster.testing
from dagmaster import Checkpoint, Context, HandlerResult, Permanent
from dagmaster.errors import Conflict, Invalid, UnknownHandler, UnknownNode
from dagmaster.ids import JobId, TaskId
from dagmaster.model.problems import InvalidWorkflow
from dagmaster.queues.contract import TaskMessage
from dagmaster.testing import JobUnderTest, TravelClock, acall_handler, call_handler, plugin
from dagmaster.testing.faults import Faults
from dagmaster.testing.records import attempts_of

NOBODY = "postgresql://nobody@/nothing"
SPREAD = """
workflow_id: spread
nodes:
  spread: {type: fan_out, source: "{{ [1, 2] }}", task: {handler: echo}, next: gather}
  gather: {type: fan_in, aggregation: collect, next: tell}
  tell: {handler: teller}
"""


def job(text: str = SPREAD, **options: Any) -> JobUnderTest:
    return JobUnderTest(NOBODY, text, log_dir=Path("logs"), **options)


def task(node_id: str, retry_count: int = 0) -> TaskMessage:
    return TaskMessage(
        TaskId(f"1_{node_id}_{retry_count}"), JobId(1), node_id, "echo", "q", b"{}", 60, retry_count, datetime.now(UTC)
    )


# The clock


def test_a_skipped_clock_is_ahead_by_that_time() -> None:
    clock, skips = TravelClock(), []
    forget = clock.on_skip(lambda: skips.append(clock.skipped))
    clock.advance(hours=2, minutes=1)
    forget()
    clock.advance(days=1)
    assert skips == [timedelta(hours=2, minutes=1)]
    assert abs(clock.now() - datetime.now(UTC) - timedelta(days=1, hours=2, minutes=1)) < timedelta(minutes=1)


def test_the_databases_time_does_not_undo_a_skip() -> None:
    clock, now = TravelClock(), datetime.now(UTC)
    clock.advance(hours=2)
    clock.adjust(now, monotonic(), monotonic())
    assert clock.now() - now >= timedelta(hours=2)


def test_waits_are_skipped_up_to_the_allowed_time() -> None:
    clock = TravelClock()
    clock.skip_waiting(hours=1)
    assert clock.go_to(clock.now() + timedelta(minutes=59))
    assert not clock.go_to(clock.now() + timedelta(minutes=59))
    assert not clock.go_to(clock.now() - timedelta(minutes=1))
    assert clock.skipped <= timedelta(minutes=59)


@pytest.mark.parametrize("span", [{}, {"hours": -1}, {"fortnights": 1}, {"hours": "2"}])
def test_only_a_positive_time_can_be_skipped(span: dict[str, Any]) -> None:
    with pytest.raises(Invalid, match="hours=2"):
        TravelClock().advance(**span)


# Faults


def test_a_fault_applies_only_to_its_attempt() -> None:
    faults = Faults()
    faults.add("a", 2, error=ValueError())
    assert [faults.of(task("a", tries)) is not None for tries in range(3)] == [False, True, False]
    assert faults.of(task("b", 1)) is None


def test_a_fault_of_one_attempt_overrides_that_of_every_attempt() -> None:
    faults = Faults()
    faults.add("a", None, delay_seconds=1)
    faults.add("a", 1, is_lost=True)
    first, second = faults.of(task("a", 0)), faults.of(task("a", 1))
    assert first is not None and first.is_lost
    assert second is not None and second.is_mere_delay


def test_faults_of_one_attempt_are_combined() -> None:
    faults = Faults()
    faults.add("a", 1, delay_seconds=1)
    faults.add("a", 1, error=ValueError)
    trouble = faults.of(task("a"))
    assert trouble is not None and (trouble.delay_seconds, trouble.error) == (1, ValueError)


def test_a_fault_of_a_fan_out_applies_to_all_children() -> None:
    faults = Faults()
    faults.add("spread", 1, is_lost=True)
    faults.add("spread__1", 1, delay_seconds=1)
    met = [faults.of(task(name)) for name in ("spread__0", "spread__1", "spread__x")]
    assert [trouble is not None and trouble.is_lost for trouble in met] == [True, False, False]


def test_faults_require_existing_nodes_that_workers_execute() -> None:
    with pytest.raises(UnknownNode, match="no node 'tel'; did you mean 'tell'"):
        job().fail("tel")
    with pytest.raises(Invalid, match="'gather' is of type fan_in, which no worker executes"):
        job().lose("gather")
    with pytest.raises(Invalid, match="count from 1"):
        job().fail("tell", attempt=0)
    with pytest.raises(Invalid, match="0 seconds or more"):
        job().delay("tell", -1)
    job().fail("spread").fail("spread__1").fail("tell.0")


def test_a_handler_process_cannot_be_lost_at_a_checkpoint() -> None:
    apart = dagmaster.handlers.Handler("teller", lambda ctx: None, isolation="process")
    with pytest.raises(Invalid, match="its own process"):
        job(handlers=[apart]).lose("tell", after="half")


def test_only_existing_handlers_can_be_replaced() -> None:
    with pytest.raises(UnknownHandler, match="'tellr'; did you mean 'teller'"):
        job().replace("tellr", {})
    with pytest.raises(Invalid, match="an output as a dict, not int"):
        job().replace("teller", 3)


# The job before its run


def test_an_invalid_workflow_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"no workflow file 'nowhere\.yaml'; looked in .*" + tmp_path.name):
        job("nowhere.yaml", folders=[tmp_path])
    with pytest.raises(InvalidWorkflow, match="unknown key"):
        job("workflow_id: x\nnods: {}\n")
    with pytest.raises(Invalid, match="not 3"):
        job(3)  # type: ignore[arg-type]


def test_a_job_that_was_not_run_has_no_results() -> None:
    fresh = job()
    assert repr(fresh) == "<a job of spread, not run>"
    for name in ("job_id", "status", "result", "nodes", "timeline", "error"):
        with pytest.raises(Conflict, match=r"call run\(\)"):
            getattr(fresh, name)


async def test_inside_an_event_loop_the_async_methods_are_named() -> None:
    with pytest.raises(Conflict, match=r"await job\.arun"):
        job().run()
    with pytest.raises(Conflict, match="await acall_handler"):
        call_handler("echo")
    with pytest.raises(Conflict, match=r"async with job\.started"):
        await job().ended()


# The record


def event(kind: str, attempt: int, error: str | None = None, status: str = "info", **data: Any) -> dict[str, Any]:
    at, task_id = datetime(2026, 1, 1, tzinfo=UTC), f"1_a_b_{attempt}"
    fields = {"event_data": data or None, "error_message": error, "event_status": status, "duration_ms": None}
    return {"event_type": kind, "node_id": "a_b", "task_id": task_id, "created_at": at, **fields}


def test_attempts_are_read_from_the_timeline() -> None:
    timeline = [
        event("node_dispatched", 0, queue="q"),
        event("node_started", 0, worker_id="w1"),
        event("node_failed", 0, "worker w1 was lost", "warning", worker_id="w1", ended_by="lost"),
        event("node_dispatched", 1, queue="q"),
        event("node_failed", 1, "worker w9 was lost", "failure", error_type="ValueError", ended_by="failure"),
        event("node_dispatched", 2, queue="q"),
        event("node_failed", 2, "worker w2 gave it back", "warning", ended_by="given_back"),
        event("node_dispatched", 3, queue="q"),
        event("node_started", 3, worker_id="w3"),
    ]
    attempts = attempts_of(timeline, "a_b")
    assert [(attempt.number, attempt.status) for attempt in attempts] == [
        (1, "lost"),
        (2, "failed"),
        (3, "given_back"),
        (4, "running"),
    ]
    assert (attempts[0].worker_id, attempts[1].error_type, attempts[3].ended_at) == ("w1", "ValueError", None)
    assert attempts_of(timeline, "a") == []


# Single handlers


def greeting(ctx: Context) -> dict[str, Any]:
    if not ctx.params["name"]:
        raise Permanent("nobody to greet")
    return {"text": f"Hello, {ctx.params['name']}!", "after": ctx.resumed_from and ctx.resumed_from.phase}


def test_a_handler_is_called_as_by_a_worker() -> None:
    assert call_handler("echo", {"x": 1}).output == {"echoed_params": {"x": 1}}
    assert call_handler(greeting, {"name": "Ada"}) == HandlerResult.ok({"text": "Hello, Ada!", "after": None})
    refused = call_handler(greeting, {"name": ""})
    assert (refused.success, refused.permanent, refused.error_message) == (False, True, "nobody to greet")
    assert call_handler(greeting).error_types[0] == "KeyError"


async def test_the_context_has_the_values_of_the_test() -> None:
    result = await acall_handler(greeting, {"name": "Ada"}, resumed_from=Checkpoint("half", {}))
    assert result.output is not None and result.output["after"] == "half"


def test_an_unknown_handler_is_named() -> None:
    with pytest.raises(UnknownHandler, match="did you mean 'echo'"):
        call_handler("ehco")


# The package


def test_exactly_the_public_names_can_be_imported() -> None:
    assert all(getattr(dagmaster.testing, name) for name in dagmaster.testing.__all__)
    with pytest.raises(AttributeError, match="nonsense"):
        dagmaster.testing.nonsense  # noqa: B018


def test_without_the_plugin_hardly_anything_is_imported() -> None:
    code = "import sys, pytest, dagmaster.testing.plugin; print(*[m for m in sys.modules if 'dagmaster' in m])"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert sorted(modules) == ["dagmaster", "dagmaster.testing", "dagmaster.testing.plugin"]


def test_all_names_are_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "testing.md").read_text(encoding="utf-8")
    words = set(re.findall(r"\w+", page))
    fixtures = {name for name in vars(plugin) if name.startswith("dagmaster_")}
    methods = {name for kind in (JobUnderTest, TravelClock) for name in dir(kind) if not name.startswith("_")}
    own_business = {"adjust", "go_to", "on_skip"}
    assert len(fixtures) == 4
    assert {*dagmaster.testing.__all__, *fixtures, *methods} - own_business <= words
    for name in methods - own_business:
        method = getattr(JobUnderTest, name, None) or getattr(TravelClock, name)
        if callable(method):
            assert set(inspect.signature(method).parameters) - {"self"} <= words, name
