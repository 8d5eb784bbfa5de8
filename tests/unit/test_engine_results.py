"""A task can return the result of a node that it added."""

import pytest
from dynamic_nodes_bench import add, job, node, result_of
from engine_bench import AT_ONCE, Bench, choose, end, fan_out, task

from dagmaster.engine.messages import TimerDue, TimerKind
from dagmaster.model.states import JobStatus, NodeStatus

PENDING, RUNNING = NodeStatus.PENDING, NodeStatus.RUNNING


def test_a_task_can_return_the_result_of_a_node_that_it_added():
    bench = job()
    add(bench, node("a.1"))
    bench.complete("a", result_of("a.1"))
    assert (bench.of("a"), bench.of("end"), bench.store.running) == (RUNNING, PENDING, {})
    bench.complete("a.1", {"result": 9})
    assert (bench.output("a"), bench.status) == ({"result": 9}, JobStatus.COMPLETED)


def test_the_referenced_node_may_have_completed_before():
    bench = job()
    add(bench, node("a.1"))
    bench.complete("a.1", {"result": 9})
    bench.complete("a", result_of("a.1"))
    assert (bench.output("a"), bench.status) == ({"result": 9}, JobStatus.COMPLETED)


def test_results_are_passed_through_any_number_of_nodes():
    bench = job()
    adder = "a"
    for _ in range(3):
        add(bench, node(f"{adder}.1"), adder=adder)
        bench.complete(adder, result_of(f"{adder}.1"))
        adder += ".1"
    bench.restart()
    bench.complete(adder, {"result": "deep"})
    assert (bench.output("a"), bench.status) == ({"result": "deep"}, JobStatus.COMPLETED)


def test_reports_for_an_attempt_that_awaits_a_result_change_nothing():
    bench = job(timeout_seconds=10)
    add(bench, node("a.1", timeout_seconds=1000))
    bench.complete("a", result_of("a.1"))
    bench.lose("a")
    bench.fail("a")
    add(bench, node("a.2"))
    bench.wait(100)
    bench.restart()
    bench.wait(100)
    bench.send(TimerDue(TimerKind.TIMEOUT, "a", 0))
    assert (bench.of("a"), bench.store.nodes["a"].attempt) == (RUNNING, 0)
    assert "a.2" not in bench.store.nodes


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("nobody", "which was not added to this job"),
        ("end", "which was not added to this job"),
        ("a.behind", "which waits for it"),
        ("a.far", "which waits for it"),
        ("a.skipped", "which was skipped"),
    ],
)
def test_a_result_that_can_never_arrive_fails_the_attempt_permanently(name: str, reason: str):
    bench = Bench(
        {"x": 1},
        a=task(retry=AT_ONCE),
        b=task("a"),
        c=choose("inputs.x", is_1=("end",), default=("d",)),
        d=task(),
        end=end("b"),
    ).start()
    add(bench, node("a.behind", "a"), node("a.far", "b"), node("a.skipped", "d"))
    bench.complete("a", result_of(name))
    assert bench.status is JobStatus.FAILED
    assert reason in (bench.error or "")


def test_two_nodes_that_reference_each_others_result_are_detected():
    bench = job()
    add(bench, node("a.1"), node("a.2"))
    bench.complete("a.1", result_of("a.2"))
    bench.complete("a.2", result_of("a.1"))
    assert "which waits for it" in (bench.error or "")


def test_children_of_a_fan_out_cannot_wait_for_its_successors():
    bench = Bench({"items": [1, 2]}, f=fan_out("{{ inputs.items }}"), end=end("f")).start()
    add(bench, node("f__0.1", "f"), adder="f__0")
    bench.complete("f__0", result_of("f__0.1"))
    assert "which waits for it" in (bench.error or "")


def test_if_the_referenced_node_is_skipped_the_node_fails():
    bench = Bench(
        {"x": 1}, a=task(), b=task(), c=choose("inputs.x", "b", is_1=("end",), default=("d",)), d=task(), end=end("a")
    ).start()
    add(bench, node("a.1", "d"))
    bench.complete("a", result_of("a.1"))
    assert bench.of("a") is RUNNING
    bench.complete("b")
    assert "which was skipped" in (bench.error or "")


def test_a_revoked_node_returns_its_result_after_reopening():
    bench = job()
    add(bench, node("a.1"), node("a.2"))
    bench.complete("a", result_of("a.1"))
    bench.fail("a.2")
    bench.retry()
    add(bench, node("a.1"), node("a.2"))
    bench.complete("a.1", {"result": 1})
    bench.complete("a", result_of("a.1"))
    bench.complete("a.2")
    assert (bench.output("a"), bench.status) == ({"result": 1}, JobStatus.COMPLETED)
