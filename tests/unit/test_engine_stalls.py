"""Stalled jobs, judged one by one by the reasons of `explain`."""

import pytest
from engine_bench import Bench, end, fan_out, task

from dagmaster.explain.reasons import stands_without_reason
from dagmaster.model.retry import RetryPolicy
from dagmaster.model.workflow import ApprovalNode, Node, WaitNode, WorkflowNode


def is_stalled(bench: Bench) -> bool:
    return stands_without_reason(bench.job, bench.now, bench.rules, bench.closed_queues)


@pytest.mark.parametrize(
    "node",
    [
        WaitNode(seconds=10_000),
        WaitNode(signal="go"),
        ApprovalNode(message="May it?"),
        WorkflowNode(workflow="other"),
    ],
    ids=["time", "signal", "approval", "job"],
)
def test_a_job_that_waits_for_an_event_is_not_stalled(node: Node) -> None:
    bench = Bench(a=node, b=task("a"), end=end("b")).start()
    assert not is_stalled(bench)


def test_a_job_with_an_unclaimed_task_is_stalled_until_one_starts() -> None:
    bench = Bench(a=task(timeout_seconds=100), end=end("a")).start()
    assert is_stalled(bench)
    bench.begin("a")
    assert not is_stalled(bench)


def test_a_task_far_beyond_its_timeout_stalls_its_job() -> None:
    bench = Bench(a=task(timeout_seconds=100), end=end("a")).start()
    bench.begin("a")
    bench.timers.clear()  # The owner has lost its timer.
    bench.wait(1000)
    assert is_stalled(bench)


def test_pauses_retries_and_full_queues_are_not_stalls() -> None:
    bench = Bench(a=task(retry=RetryPolicy(max_attempts=1)), end=end("a")).start()
    bench.pause()
    assert not is_stalled(bench)
    bench.unpause()
    bench.fail("a")
    assert not is_stalled(bench)
    bench.close_queue()
    bench.wait(10)
    assert not is_stalled(bench)


def test_a_paused_job_with_only_queued_tasks_is_not_stalled() -> None:
    bench = Bench(a=task(), end=end("a"), clean=task(), chains={"finally": ("clean",)}).start()
    bench.complete("a")
    assert is_stalled(bench)
    bench.pause()
    assert not is_stalled(bench)


def test_children_over_max_parallel_do_not_stall_their_job() -> None:
    bench = Bench(f=fan_out([1, 2, 3], max_parallel=1), end=end("f")).start()
    assert is_stalled(bench)
    bench.begin("f__0")
    assert not is_stalled(bench)


def test_an_ended_job_is_not_stalled() -> None:
    bench = Bench(a=task(), end=end("a")).start()
    bench.cancel()
    assert not is_stalled(bench)
