"""Which jobs should move and do not: judged job by job, by the reasons that `explain` gives."""

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
def test_a_job_that_waits_for_somebody_or_something_is_not_stalled(node: Node) -> None:
    bench = Bench(a=node, b=task("a"), end=end("b")).start()
    assert not is_stalled(bench)


def test_a_job_whose_task_nobody_takes_is_stalled_until_one_begins() -> None:
    bench = Bench(a=task(timeout_seconds=100), end=end("a")).start()
    assert is_stalled(bench)
    bench.begin("a")
    assert not is_stalled(bench)


def test_a_task_that_runs_far_beyond_its_time_stalls_its_job() -> None:
    bench = Bench(a=task(timeout_seconds=100), end=end("a")).start()
    bench.begin("a")
    bench.timers.clear()  # The owner has lost its timer.
    bench.wait(1000)
    assert is_stalled(bench)


def test_a_pause_a_retry_and_a_full_queue_are_good_reasons() -> None:
    bench = Bench(a=task(retry=RetryPolicy(max_attempts=1)), end=end("a")).start()
    bench.pause()
    assert not is_stalled(bench)
    bench.unpause()
    bench.fail("a")
    assert not is_stalled(bench)
    bench.close_queue()
    bench.wait(10)
    assert not is_stalled(bench)


def test_a_paused_job_is_not_stalled_though_nothing_is_left_but_what_waits_in_its_queue() -> None:
    bench = Bench(a=task(), end=end("a"), clean=task(), chains={"finally": ("clean",)}).start()
    bench.complete("a")
    assert is_stalled(bench)
    bench.pause()
    assert not is_stalled(bench)


def test_children_that_wait_for_a_place_say_nothing_of_their_job() -> None:
    bench = Bench(f=fan_out([1, 2, 3], max_parallel=1), end=end("f")).start()
    assert is_stalled(bench)
    bench.begin("f__0")
    assert not is_stalled(bench)


def test_a_job_that_has_ended_is_not_stalled() -> None:
    bench = Bench(a=task(), end=end("a")).start()
    bench.cancel()
    assert not is_stalled(bench)
