"""Two timers for each task, and one for the job."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from engine_bench import AT_ONCE, JOB, NO_RETRY, Bench, end, fan_out, task

from dagmaster.engine.change_set import Rules
from dagmaster.engine.messages import TimerDue, TimerKind
from dagmaster.model.retry import RetryPolicy
from dagmaster.model.states import JobStatus, NodeStatus
from dagmaster.model.workflow import ApprovalNode, WaitNode

HOUR = 3600.0
DAY = 24 * HOUR


def single_node(rules: Rules | None = None, **fields: Any) -> Bench:
    return Bench(None, rules, a=task(**({"retry": AT_ONCE} | fields)), end=end("a")).start()


def test_a_task_that_times_out_is_retried():
    bench = single_node(timeout_seconds=100)
    bench.wait(50)
    bench.begin("a")
    bench.wait(104)
    assert bench.of("a") is NodeStatus.RUNNING
    bench.wait(1)
    assert bench.waiting == [f"{JOB}_a_1"]
    assert not bench.store.running
    assert bench.data("a", "node_failed") == {
        "will_retry": True,
        "timeout": "execution",
        "ended_by": "timeout",
        "error_type": "TimeoutError",
    }


def test_queue_time_does_not_count_as_execution_time():
    bench = single_node(timeout_seconds=10)
    bench.wait(1799)
    assert bench.waiting == [f"{JOB}_a_0"]
    bench.begin("a")
    bench.wait(14)
    assert bench.of("a") is NodeStatus.RUNNING


def test_an_unclaimed_task_is_retried_after_the_queue_timeout():
    bench = single_node(timeout_seconds=10)
    bench.wait(1800)
    assert bench.waiting == [f"{JOB}_a_1"]
    assert bench.data("a", "node_failed")["timeout"] == "dispatch"


def test_a_task_with_a_long_timeout_may_wait_as_long_in_its_queue():
    bench = single_node(timeout_seconds=2 * HOUR)
    bench.wait(2 * HOUR - 1)
    assert bench.waiting == [f"{JOB}_a_0"]
    bench.wait(1)
    assert bench.waiting == [f"{JOB}_a_1"]


def test_the_operator_can_set_the_queue_timeout():
    bench = single_node(Rules(dispatch_timeout_seconds=60), timeout_seconds=10)
    bench.wait(60)
    assert bench.waiting == [f"{JOB}_a_1"]


def test_the_last_timeout_fails_the_job():
    bench = single_node(timeout_seconds=10, retry=NO_RETRY)
    bench.begin("a")
    bench.wait(15)
    assert bench.error == "node a failed: timed out after 10 s"


def test_the_timer_of_an_ended_attempt_does_nothing():
    bench = single_node(timeout_seconds=100)
    bench.begin("a")
    bench.wait(60)
    bench.fail("a")
    bench.begin("a")
    bench.wait(50)
    assert (bench.of("a"), bench.store.nodes["a"].attempt) == (NodeStatus.RUNNING, 1)


def test_a_timer_for_an_unknown_node_does_nothing():
    bench = single_node()
    assert not bench.send(TimerDue(TimerKind.TIMEOUT, "ghost", 0)).events


def test_timeouts_continue_after_a_takeover():
    bench = single_node(timeout_seconds=100)
    bench.begin("a")
    bench.wait(90)
    bench.restart()
    bench.wait(15)
    assert bench.waiting == [f"{JOB}_a_1"]


def test_the_queue_timeout_continues_after_a_takeover():
    bench = single_node(timeout_seconds=10)
    bench.wait(1000)
    bench.restart()
    bench.wait(800)
    assert bench.waiting == [f"{JOB}_a_1"]


def test_children_have_the_timeout_of_their_task():
    bench = Bench(f=fan_out([1, 2], child={"retry": AT_ONCE, "timeout_seconds": 30}), end=end("f")).start()
    bench.begin("f__0")
    bench.wait(35)
    assert bench.waiting == [f"{JOB}_f__1_0", f"{JOB}_f__0_1"]


# Jobs without progress


def test_a_job_stalled_for_a_day_fails():
    bench = single_node()
    bench.begin("a")
    bench.now += timedelta(seconds=2 * DAY)
    bench.send(TimerDue(TimerKind.ZOMBIE))
    assert bench.status is JobStatus.RUNNING, "the timer of its task is due, too"
    bench.now += timedelta(seconds=DAY)
    bench.send(TimerDue(TimerKind.ZOMBIE))
    assert (bench.status, bench.error) == (JobStatus.FAILED, "Timeout: no progress for 24 hours")
    assert bench.of("a") is NodeStatus.FAILED


PATIENT: dict[str, Callable[[Bench], object]] = {
    "wait": lambda bench: None,
    "approval": lambda bench: None,
    "retry": lambda bench: bench.fail("retry", retry_after_seconds=20),
    "task": lambda bench: bench.begin("task"),
}


@pytest.mark.parametrize("name", PATIENT)
@pytest.mark.parametrize("late_seconds", [0, 1, 100])
@pytest.mark.parametrize("is_reversed", [False, True])
def test_the_order_of_simultaneous_timers_does_not_matter(name: str, late_seconds: float, is_reversed: bool):
    """A former bug: a wait longer than the limit failed its job at the moment at which it should have completed."""
    nodes: dict[str, Any] = {
        "wait": WaitNode(seconds=20),
        "approval": ApprovalNode(message="?", timeout_seconds=20, allow_failure=True),
        "retry": task(retry=RetryPolicy(max_attempts=1)),
        "task": task(timeout_seconds=15, retry=RetryPolicy(max_attempts=1)),
    }
    bench = Bench(rules=Rules(zombie_after_seconds=12), **{name: nodes[name]}, last=task(name), end=end("last")).start()
    PATIENT[name](bench)
    bench.wait(19)
    assert bench.status is JobStatus.RUNNING
    bench.now += timedelta(seconds=1 + late_seconds)
    due = [TimerDue(TimerKind.ZOMBIE), *(timer for at, _, timer in bench.timers if at <= bench.now)]
    bench.send(*(reversed(due) if is_reversed else due))
    assert bench.status is JobStatus.RUNNING
    assert bench.job.nodes[name].ended_by is not None or bench.job.nodes[name].attempt == 1


@pytest.mark.parametrize("seconds", [40, 20 * DAY])
def test_a_wait_of_any_length_is_not_a_stall(seconds: float):
    bench = Bench(rules=Rules(zombie_after_seconds=12), w=WaitNode(seconds=seconds), end=end("w")).start()
    bench.wait(seconds - 1)
    bench.restart()
    bench.wait(1)
    assert bench.status is JobStatus.COMPLETED


def test_a_wait_that_expired_without_an_owner_completes():
    bench = Bench(rules=Rules(zombie_after_seconds=12), w=WaitNode(seconds=40), end=end("w")).start()
    bench.now += timedelta(seconds=1000)
    bench.restart()
    bench.wait(0)
    assert bench.status is JobStatus.COMPLETED


def test_a_job_with_progress_is_not_stalled():
    bench = Bench(a=task(), b=task("a"), end=end("b")).start()
    bench.now += timedelta(seconds=DAY - 1)
    bench.complete("a")
    bench.wait(1)
    assert bench.status is JobStatus.RUNNING


def test_a_job_in_a_long_back_off_is_not_stalled():
    bench = single_node(retry=RetryPolicy(max_attempts=1, initial_delay_seconds=DAY, max_delay_seconds=3 * DAY))
    bench.fail("a", retry_after_seconds=2 * DAY)
    bench.wait(DAY + HOUR)
    assert bench.status is JobStatus.RUNNING
    bench.wait(DAY)
    assert bench.waiting == [f"{JOB}_a_1"]


def test_a_task_with_a_timeout_of_a_day_times_out_before_its_job_stalls():
    bench = single_node(timeout_seconds=DAY)
    bench.begin("a")
    bench.wait(DAY + 1)
    assert bench.of("a") is NodeStatus.RUNNING
    bench.wait(10)
    assert (bench.status, bench.waiting) == (JobStatus.RUNNING, [f"{JOB}_a_1"])
