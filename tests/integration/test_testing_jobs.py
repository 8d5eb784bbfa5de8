"""Jobs under test: whole workflows with planned faults and skipped time."""

import asyncio
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dagmaster import Context, Permanent, apply, create_task, task, workflow
from dagmaster.errors import Forbidden, UnknownNode
from dagmaster.model.inputs import WrongInputs
from dagmaster.model.problems import InvalidWorkflow
from dagmaster.testing import JobNotEnded, JobUnderTest, TravelClock, call_handler, job_under_test, run_workflow

Make = Callable[..., JobUnderTest]

GREET = """
workflow_id: greet
inputs: {name: string}
nodes:
  greet:
    handler: greeting
    params: {name: "{{ inputs.name }}"}
    retry: {max_attempts: 3, backoff: fixed, initial_delay_seconds: 3600, max_delay_seconds: 3600}
    next: tell
  tell:
    handler: echo
    params: {text: "{{ nodes.greet.output.text }}"}
"""
SPREAD = """
workflow_id: spread
nodes:
  spread:
    type: fan_out
    source: "{{ [1, 2, 3] }}"
    task: {handler: double, params: {x: "{{ item }}"}, retry: {max_attempts: 1, initial_delay_seconds: 0}}
    next: gather
  gather: {type: fan_in, aggregation: collect}
"""
ALONE = """
workflow_id: alone
nodes:
  work: {handler: work, timeout_seconds: 600, retry: {max_attempts: 1, initial_delay_seconds: 0}}
"""


def greeting(ctx: Context) -> dict[str, Any]:
    ctx.logger.warning("greeting %s", ctx.params["name"])
    return {"text": f"Hello, {ctx.params['name']}!"}


def double(ctx: Context) -> dict[str, Any]:
    return {"doubled": ctx.params["x"] * 2}


@pytest.fixture
def make(dsn: str, tmp_path: Path) -> Make:
    def make(text: str, inputs: dict[str, Any] | None = None, **options: Any) -> JobUnderTest:
        return JobUnderTest(dsn, text, inputs, **{"log_dir": tmp_path, "handlers": [greeting, double], **options})

    return make


def types(job: JobUnderTest, node: str) -> list[str]:
    return [event["event_type"] for event in job.timeline if event["node_id"] == node]


def statuses(job: JobUnderTest, node: str) -> list[str]:
    return [attempt.status for attempt in job.attempts(node)]


def test_a_workflow_runs_in_one_line(make: Make) -> None:
    job = make(GREET, {"name": "Ada"}).run()
    assert job.status == "completed"
    assert job.result["tell"] == {"echoed_params": {"text": "Hello, Ada!"}}
    assert job.nodes["greet"].output == {"text": "Hello, Ada!"}
    assert statuses(job, "greet") == ["completed"]
    assert types(job, "greet")[-1] == "node_completed"
    assert "greeting Ada\n" in job.log("greet")
    assert repr(job).startswith(f"<job {job.job_id} of greet, completed; START completed, ")


async def test_a_workflow_runs_in_a_coroutine(make: Make) -> None:
    job = await make(GREET, {"name": "Ada"}).arun()
    assert job.status == "completed"
    with pytest.raises(UnknownNode, match="no node 'gret'; did you mean 'greet'"):
        job.attempts("gret")


def test_hours_of_back_off_are_skipped(make: Make) -> None:
    job = make(GREET, {"name": "Ada"}).fail("greet").fail("greet", attempt=2, error=TimeoutError).skip_time(hours=2)
    job.run()
    first, second, third = job.attempts("greet")
    assert (first.status, first.error, first.error_type) == (
        "failed",
        "ConnectionError: injected by the test",
        "ConnectionError",
    )
    assert (second.error_type, third.status, job.status) == ("TimeoutError", "completed", "completed")
    assert first.ended_at is not None and third.started_at is not None
    assert 7200 <= (third.started_at - first.ended_at).total_seconds() < 7300


async def test_only_the_allowed_time_is_skipped_and_the_wait_is_explained(make: Make) -> None:
    job = make(GREET, {"name": "Ada"}).fail("greet", attempt=None).skip_time(hours=1, minutes=30)
    explained = re.compile(r"after 0.2 s the job has not ended: .* waits for `greet`, which failed 2 times")
    message = ""
    async with job.started(), asyncio.timeout(60):
        while not explained.search(message):  # A busy machine takes longer for the two attempts.
            with pytest.raises(JobNotEnded) as waits:
                await job.ended(timeout=0.2)
            message = str(waits.value)
    assert (job.status, statuses(job, "greet")) == ("running", ["failed", "failed"])


def test_a_permanent_failure_fails_the_job(make: Make) -> None:
    job = make(GREET, {"name": "Ada"}).fail("greet", error=Permanent("no")).run()
    assert (job.status, job.error, job.result) == ("failed", "node greet failed: no", None)
    assert (job.nodes["greet"].error, job.nodes["tell"].status) == ("no", "skipped")
    assert "failed: node greet failed: no; " in repr(job)


def test_a_lost_worker_costs_one_attempt(make: Make) -> None:
    job = make(SPREAD).lose("spread__1").run()
    assert job.status == "completed"
    assert [statuses(job, f"spread__{index}") for index in range(3)] == [
        ["completed"],
        ["lost", "completed"],
        ["completed"],
    ]
    assert [result["doubled"] for result in job.result["gather"]["results"]] == [2, 4, 6]


def test_all_children_of_a_fan_out_can_fail(make: Make) -> None:
    job = make(SPREAD).fail("spread").run()
    assert [statuses(job, f"spread__{index}") for index in range(3)] == [["failed", "completed"]] * 3


@pytest.mark.parametrize("kind", ["thread", "coroutine"])
def test_a_worker_can_be_lost_after_a_checkpoint(make: Make, kind: str) -> None:
    begun: list[Any] = []

    def in_thread(ctx: Context) -> dict[str, Any]:
        begun.append(ctx.resumed_from and (ctx.resumed_from.phase, ctx.resumed_from.data))
        for phase in ctx.remaining(["load", "clean", "store"]):
            ctx.checkpoint(phase, {"of": phase})
            begun.append(phase)
        return {"done": True}

    async def in_loop(ctx: Context) -> dict[str, Any]:
        begun.append(ctx.resumed_from and (ctx.resumed_from.phase, ctx.resumed_from.data))
        for phase in ctx.remaining(["load", "clean", "store"]):
            await ctx.checkpoint(phase, {"of": phase})
            begun.append(phase)
        return {"done": True}

    chosen = in_thread if kind == "thread" else in_loop
    job = make(ALONE).replace("work", chosen).lose("work", after="clean").run()
    assert (job.status, statuses(job, "work")) == ("completed", ["lost", "completed"])
    assert begun == [None, "load", ("clean", {"of": "clean"}), "store"]


def test_a_task_that_never_saves_the_checkpoint_is_not_lost(make: Make) -> None:
    job = make(ALONE).replace("work", {"done": True}).lose("work", after="never").run()
    assert (job.result["work"], statuses(job, "work")) == ({"done": True}, ["completed"])


def test_a_delay_counts_towards_the_timeout(make: Make) -> None:
    # On a busy machine, other attempts may take longer than a second too.
    quick = ALONE.replace("600", "1").replace("max_attempts: 1", "max_attempts: 9")
    job = make(quick).replace("work", {}).delay("work", 30, attempt=1).run()
    first, *_, last = job.attempts("work")
    assert (first.status, first.error, last.status) == ("failed", "timed out after 1 s", "completed")


def test_a_handler_can_be_replaced_by_a_function_or_an_output(make: Make) -> None:
    def unkind(ctx: Context) -> dict[str, Any]:
        return {"text": f"Go away, {ctx.params['name']}!"}

    assert make(GREET, {"name": "Ada"}).replace("greeting", unkind).run().nodes["greet"].output == {
        "text": "Go away, Ada!"
    }
    assert make(GREET, {"name": "Ada"}).replace("greeting", {"text": "-"}).run().result["tell"] == {
        "echoed_params": {"text": "-"}
    }


def test_an_unknown_handler_needs_a_replacement(make: Make) -> None:
    elsewhere = ALONE.replace("handler: work", "handler: gpu.train")
    with pytest.raises(InvalidWorkflow, match=r"gpu\.train"):
        make(elsewhere).run()
    assert make(elsewhere).replace("gpu.train", {"loss": 0.1}).run().result["work"] == {"loss": 0.1}


def test_inputs_are_validated(make: Make) -> None:
    with pytest.raises(WrongInputs, match="name"):
        make(GREET).run()


async def test_time_can_be_skipped_while_a_task_runs(make: Make) -> None:
    """Its owner sees the timeout long before its worker does."""
    hangs, go = threading.Event(), threading.Event()

    def work(ctx: Context) -> dict[str, Any]:
        hangs.set()
        if ctx.retry_count == 0:
            go.wait(100)
        return {}

    clock = TravelClock()
    job = make(ALONE, clock=clock).replace("work", work)
    async with job.started():
        await job.until("work", "running")
        clock.advance(minutes=11)
        await job.ended()
        go.set()
    assert hangs.is_set()
    first, second = job.attempts("work")
    assert (first.status, first.error, second.status) == ("failed", "timed out after 600 s", "completed")


async def test_waiting_for_a_node_in_vain_is_explained(make: Make) -> None:
    async with make(GREET, {"name": "Ada"}).fail("greet").started() as job:
        await job.until("greet", "ready")
        with pytest.raises(JobNotEnded, match=r"has no completed node 'tell': .* waits for `greet`"):
            await job.until("tell", "completed", timeout=0.3)


def test_skipped_time_does_not_expire_leases(make: Make) -> None:
    """Heartbeats use another clock, so nobody is declared lost after days."""
    daily = GREET.replace("3600", "86400")
    job = make(daily, {"name": "Ada"}, zombie_after_seconds=1e9, default_job_timeout_seconds=1e9)
    for attempt in (1, 2, 3):
        job.fail("greet", attempt=attempt)
    job.skip_time(days=3).run()
    assert (job.status, len(job.attempts("greet"))) == ("completed", 4)
    assert not {event["event_type"] for event in job.timeline} & {"job_taken_over", "orchestrator_error"}
    assert len({attempt.worker_id for attempt in job.attempts("greet")}) == 1


# Workflows in Python


@task(retries=2, retry_delay=3600)
def clean(number: int) -> int:
    return number * 10


@task
async def total(numbers: list[int]) -> int:
    return sum(numbers)


@workflow(id="etl_under_test")
def etl(day: int, factor: int = 2) -> int:
    return total([clean(day), clean(factor)])


def test_a_python_workflow_returns_its_result(make: Make) -> None:
    job = make(etl, {"day": 3}).fail("clean_2").skip_time(hours=1).run()
    assert (job.status, job.result) == ("completed", 50)
    assert (statuses(job, "clean"), statuses(job, "clean_2")) == (["completed"], ["failed", "completed"])
    assert job.nodes["total"].output == {"result": 50}


def test_a_python_task_can_be_replaced_by_any_of_its_forms(make: Make) -> None:
    assert make(etl, {"day": 3}).replace(clean, lambda number: number + 1).run().result == 7
    assert make(etl, {"day": 3}).replace(clean, 5).run().result == 10
    assert call_handler(clean, {"number": 4}).output == {"result": 40}


def test_a_python_workflow_that_fails_has_no_result(make: Make) -> None:
    job = make(etl, {"day": 3}).fail("total", error=Permanent("no")).run()
    assert (job.status, job.result) == ("failed", None)


@task
async def add_two(number: int) -> None:
    await apply([create_task(clean, {"number": number}), create_task(clean, {"number": number + 1})])


@workflow
def adding(number: int) -> None:
    add_two(number)


def test_added_tasks_can_fail_too(make: Make) -> None:
    job = make(adding, {"number": 1}).fail("add_two.1").skip_time(hours=1).run()
    added = [node for node in job.nodes.values() if node.parent == "add_two"]
    assert (job.status, sorted(node.output["result"] for node in added)) == ("completed", [10, 20])
    assert sorted(statuses(job, node.node_id) for node in added) == [["completed"], ["failed", "completed"]]


# Without pytest


def test_a_workflow_can_be_run_without_a_fixture() -> None:
    job = run_workflow(GREET, {"name": "Ada"}, handlers=[greeting])
    assert job.status == "completed"
    with job_under_test(SPREAD, handlers=[double]) as other:
        assert other.fail("spread__0").run().status == "completed"


# Waits

LAUNCH = """
workflow_id: launch
nodes:
  rest: {type: wait, duration: 3h, next: ask}
  ask: {type: approval, message: "Go?", approvers: [ada, grace], timeout_seconds: 86400, next: hear}
  hear: {type: wait, signal: weather, timeout_seconds: 86400, next: go}
  go: {handler: echo, params: {by: "{{ nodes.ask.output.by }}", sky: "{{ nodes.hear.output.signal.data }}"}}
"""


def test_signals_and_decisions_can_be_given_in_advance(make: Make) -> None:
    job = make(LAUNCH).approve("ask", comment="yes").signal("weather", {"sky": "blue"}).skip_time(hours=3).run()
    assert job.result["go"]["echoed_params"] == {"by": "ada", "sky": {"sky": "blue"}}
    assert job.result["rest"]["waited_seconds"] >= 3 * 3600


def test_a_rejection_can_be_given_in_advance(make: Make) -> None:
    job = make(LAUNCH).reject("ask", by="grace", comment="too windy").skip_time(hours=3).run()
    assert (job.status, job.error) == ("failed", "node ask failed: rejected by grace: too windy")


def test_a_decision_by_a_non_approver_is_refused(make: Make) -> None:
    with pytest.raises(Forbidden, match="decided by ada or grace, not by eve"):
        make(LAUNCH).approve("ask", by="eve").skip_time(hours=3).run()


def test_an_approval_can_time_out(make: Make) -> None:
    job = make(LAUNCH).skip_time(days=2).run()
    assert job.status == "failed" and job.nodes["ask"].status == "failed" and job.nodes["go"].status == "skipped"


def test_a_signal_completes_one_wait_and_the_next_one_times_out(make: Make) -> None:
    text = """
workflow_id: twice
nodes:
  first: {type: wait, signal: go, timeout_seconds: 3600, next: second}
  second: {type: wait, signal: go, timeout_seconds: 3600, allow_failure: true}
"""
    job = make(text).signal("go").skip_time(hours=2).run(timeout=90)
    assert job.status == "completed"
    assert "did not arrive within 3600 s" in job.attempts("second")[0].error


def test_no_time_is_skipped_while_a_child_workflow_is_starting(make: Make, tmp_path: Path) -> None:
    """The hour that another node waits would time the call out."""
    (tmp_path / "greet.yaml").write_text(GREET)
    (tmp_path / "outer.yaml").write_text(
        "workflow_id: outer\nnodes:\n  nap: {type: wait, duration: 1h}\n"
        "  inner: {type: workflow, workflow: greet, inputs: {name: Ada}, timeout_seconds: 60}\n"
    )
    job = make("outer.yaml", folders=[tmp_path]).skip_time(hours=1).run()
    assert (job.status, job.error) == ("completed", None)


CALLS = """
workflow_id: outer
nodes:
  inner:
    type: workflow
    workflow: {called}
    timeout_seconds: 7200
    retry: {{max_attempts: 1, backoff: fixed, initial_delay_seconds: 3600, max_delay_seconds: 3600}}
"""


def test_the_delay_before_a_child_is_retried_is_skipped(make: Make, tmp_path: Path) -> None:
    (tmp_path / "alone.yaml").write_text(ALONE.replace("max_attempts: 1", "max_attempts: 0"))
    (tmp_path / "outer.yaml").write_text(CALLS.format(called="alone"))
    tries: list[int] = []

    def work(ctx: Context) -> dict[str, Any]:
        tries.append(1)
        if len(tries) == 1:
            raise Permanent("no luck")
        return {}

    job = make("outer.yaml", folders=[tmp_path], handlers=[work]).skip_time(hours=1).run()
    assert (job.status, len(tries)) == ("completed", 2)


def test_a_call_times_out_when_its_child_waits_forever(make: Make, tmp_path: Path) -> None:
    (tmp_path / "patient.yaml").write_text("workflow_id: patient\nnodes:\n  w: {type: wait, signal: never}\n")
    (tmp_path / "outer.yaml").write_text(CALLS.format(called="patient"))
    job = make("outer.yaml", folders=[tmp_path]).skip_time(days=1).run()
    assert job.error == "node inner failed: timed out: its child job did not end within 7200 s"


def test_a_child_workflow_is_found_next_to_its_file(make: Make, tmp_path: Path) -> None:
    (tmp_path / "greet.yaml").write_text(GREET)
    (tmp_path / "outer.yaml").write_text(
        "workflow_id: outer\nnodes:\n  inner: {type: workflow, workflow: greet, inputs: {name: Ada}}\n"
    )
    job = make("outer.yaml", folders=[tmp_path]).run()
    assert job.result["inner"]["result"]["greet"] == {"text": "Hello, Ada!"}


def test_faults_apply_to_the_job_and_not_to_its_children(make: Make, tmp_path: Path) -> None:
    tell = "  tell: {handler: echo, retry: {max_attempts: 0}}\n"
    (tmp_path / "inner.yaml").write_text(f"workflow_id: inner\nnodes:\n{tell}")
    (tmp_path / "outer.yaml").write_text(
        f"workflow_id: outer\nnodes:\n  call: {{type: workflow, workflow: inner, next: tell}}\n{tell}"
    )
    job = make("outer.yaml", folders=[tmp_path]).fail("tell").run()
    assert (job.nodes["call"].status, job.nodes["tell"].status) == ("completed", "failed")
