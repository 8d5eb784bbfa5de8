"""Nodes added by finalizers belong to them and run again with them."""

from dynamic_nodes_bench import add, node, result_of
from engine_bench import NO_RETRY, Bench, end, task

from dagmaster.model.states import JobStatus, NodeStatus

PENDING, DISPATCHED, COMPLETED = NodeStatus.PENDING, NodeStatus.DISPATCHED, NodeStatus.COMPLETED
FAILED, SKIPPED = NodeStatus.FAILED, NodeStatus.SKIPPED


def cleaning() -> Bench:
    """A job that has ended except for `clean`, which runs."""
    bench = Bench(
        chains={"finally": ("clean",)}, a=task(retry=NO_RETRY), end=end("a"), clean=task(retry=NO_RETRY)
    ).start()
    bench.fail("a")
    bench.begin("clean")
    return bench


def test_the_job_ends_after_nodes_added_by_its_finalizers():
    bench = cleaning()
    add(bench, node("clean.1"), node("clean.2", "clean.1"), adder="clean")
    bench.complete("clean")
    bench.restart()
    bench.complete("clean.1")
    assert bench.status is JobStatus.RUNNING
    bench.complete("clean.2")
    assert bench.status is JobStatus.FAILED


def test_a_referenced_result_that_already_failed_fails_its_node():
    bench = cleaning()
    add(bench, node("clean.1"), adder="clean")
    bench.fail("clean.1", "no water")
    bench.complete("clean", result_of("clean.1"))
    assert bench.of("clean") is FAILED
    assert bench.store.nodes["clean"].error == "its result is that of clean.1, which failed"
    assert bench.status is JobStatus.FAILED


def test_added_nodes_run_again_when_they_are_added_again():
    bench = cleaning()
    tasks = node("clean.1", params={"x": 1}), node("clean.2", params={"x": {"$result": "clean.1"}})
    add(bench, *tasks, adder="clean")
    bench.complete("clean.1", {"result": "first"})
    bench.complete("clean")
    bench.complete("clean.2")
    bench.retry()
    assert {bench.of("clean.1"), bench.of("clean.2")} == {SKIPPED}
    bench.restart()
    bench.complete("a")
    bench.begin("clean")
    changed = node("clean.1", params={"x": 2})
    add(bench, changed, tasks[1], adder="clean")
    assert (bench.of("clean.1"), bench.of("clean.2"), bench.params("clean.1")) == (DISPATCHED, PENDING, {"x": 2})
    bench.restart()
    bench.complete("clean.1", {"result": "second"})
    assert bench.params("clean.2") == {"x": "second"}
    bench.complete("clean.2")
    bench.complete("clean")
    assert (bench.status, bench.error) == (JobStatus.COMPLETED, None)


def test_failed_nodes_that_are_not_added_again_block_nothing():
    bench = cleaning()
    add(bench, node("clean.1"), node("clean.2", "clean.1"), adder="clean")
    bench.fail("clean.1")
    bench.complete("clean")
    bench.retry()
    bench.complete("a")
    bench.complete("clean")
    assert (bench.status, bench.error) == (JobStatus.COMPLETED, None)
    assert {bench.of("clean.1"), bench.of("clean.2")} == {SKIPPED}
