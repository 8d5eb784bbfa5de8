"""An attempt has failed: how often, and after which pause, another follows."""

from datetime import timedelta
from random import Random

import pytest
from engine_bench import AT_ONCE, JOB, NO_RETRY, START, Bench, choose, end, fan_out, task

from dagmaster.engine.turn import Rules
from dagmaster.model.retry import Backoff, RetryPolicy
from dagmaster.model.states import JobStatus, NodeStatus


def one(policy: RetryPolicy, rules: Rules | None = None) -> Bench:
    return Bench(None, rules, a=task(retry=policy), end=end("a")).start()


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_max_attempts_counts_the_retries(retries: int):
    """Ruling C-20."""
    bench = one(RetryPolicy(max_attempts=retries, initial_delay_seconds=0))
    for _ in range(retries):
        bench.fail("a")
        assert bench.status is JobStatus.RUNNING
    bench.fail("a")
    assert bench.status is JobStatus.FAILED
    assert bench.events("a").count("dispatched") == retries + 1


def test_a_retried_node_starts_anew():
    bench = one(AT_ONCE)
    bench.begin("a")
    bench.fail("a", "no luck")
    row = bench.store.nodes["a"]
    assert (row.status, row.attempt, row.task_id) == (NodeStatus.DISPATCHED, 1, f"{JOB}_a_1")
    assert (row.started_at, row.completed_at, row.error, row.output) == (None, None, None, None)
    assert bench.waiting == [f"{JOB}_a_1"]


def test_the_timeline_tells_of_the_failure_and_of_the_retry():
    bench = one(RetryPolicy(max_attempts=1, initial_delay_seconds=7))
    bench.fail("a", "no luck")
    assert bench.events("a") == ["ready", "dispatched", "started", "failed", "retrying"]
    assert bench.data("a", "node_failed") == {"will_retry": True, "worker_id": "worker"}
    assert bench.data("a", "node_retrying") == {
        "attempt": 1,
        "max_retries": 1,
        "not_before": START + timedelta(seconds=7),
        "after_error": "no luck",
    }
    bench.wait(7)
    bench.fail("a", "no luck again")
    assert bench.data("a", "node_failed")["will_retry"] is False
    assert bench.error == "node a failed: no luck again"


@pytest.mark.parametrize(
    ("backoff", "delays"),
    [(Backoff.FIXED, [10, 10, 10]), (Backoff.LINEAR, [10, 20, 25]), (Backoff.EXPONENTIAL, [10, 20, 25])],
)
def test_the_back_off_is_really_waited(backoff: Backoff, delays: list[int]):
    """RT-03, up to the largest delay."""
    policy = RetryPolicy(max_attempts=3, backoff=backoff, initial_delay_seconds=10, max_delay_seconds=25)
    bench = one(policy)
    for attempt, delay in enumerate(delays, start=1):
        bench.fail("a")
        bench.wait(delay - 0.001)
        assert (bench.of("a"), bench.waiting) == (NodeStatus.READY, [])
        bench.wait(0.001)
        assert bench.waiting == [f"{JOB}_a_{attempt}"]


def test_exponential_delays_double():
    bench = one(RetryPolicy(max_attempts=3, initial_delay_seconds=10, max_delay_seconds=1000))
    for delay in (10, 20, 40):
        bench.fail("a")
        assert bench.store.nodes["a"].not_before == bench.now + timedelta(seconds=delay)
        bench.wait(delay)


def test_jitter_spreads_the_delays():
    rules = Rules(rng=Random(1))
    waits = set()
    for _ in range(20):
        bench = one(RetryPolicy(initial_delay_seconds=10, jitter=0.2), rules)
        bench.fail("a")
        not_before = bench.store.nodes["a"].not_before
        assert not_before is not None
        waits.add((not_before - bench.now).total_seconds())
    assert len(waits) == 20 and 8 <= min(waits) < 10 < max(waits) <= 12


def test_a_worker_may_say_when_to_try_again():
    bench = one(RetryPolicy(initial_delay_seconds=5))
    bench.fail("a", retry_after_seconds=120)
    bench.wait(119)
    assert not bench.waiting
    bench.wait(1)
    assert bench.waiting == [f"{JOB}_a_1"]


def test_a_back_off_goes_on_after_a_take_over():
    bench = one(RetryPolicy(initial_delay_seconds=60))
    bench.fail("a")
    bench.wait(30)
    bench.restart()
    assert not bench.waiting
    bench.wait(30)
    assert bench.waiting == [f"{JOB}_a_1"]


def test_a_back_off_that_ended_while_nobody_owned_the_job_is_over():
    bench = one(RetryPolicy(initial_delay_seconds=60))
    bench.fail("a")
    bench.now += timedelta(hours=1)
    bench.restart()
    bench.wait(0)
    assert bench.waiting == [f"{JOB}_a_1"]


def test_a_permanent_error_is_not_tried_again():
    """RT-18."""
    bench = one(AT_ONCE)
    bench.fail("a", "wrong input", permanent=True)
    assert bench.events("a").count("dispatched") == 1
    assert bench.error == "node a failed: wrong input"


def test_an_expression_that_fails_is_a_failed_attempt():
    """SM-N-05, RT-10: READY to FAILED, with retry."""
    policy = RetryPolicy(max_attempts=1, initial_delay_seconds=5)
    bench = Bench(
        a=task(params={"x": "{{ nodes.b.output.missing }}"}, retry=policy, any_of=("b",)), b=task(), end=end("a")
    )
    bench.start().complete("b", {"present": 1})
    assert bench.events("a") == ["ready", "failed", "retrying"]
    assert bench.store.nodes["a"].task_id is None
    bench.wait(5)
    assert bench.events("a") == ["ready", "failed", "retrying", "failed"]
    assert bench.status is JobStatus.FAILED and "missing" in str(bench.error)
    assert not bench.waiting


def test_a_condition_that_fails_is_tried_again_and_then_fails_the_job():
    """D-10."""
    policy = RetryPolicy(max_attempts=1, initial_delay_seconds=5)
    route = choose("inputs.object.missing", is_1=("a",), default=("b",)).model_copy(update={"retry": policy})
    bench = Bench({"object": {}}, route=route, a=task(), b=task(), end=end("a", "b")).start()
    assert bench.events("route") == ["ready", "failed", "retrying"]
    bench.wait(5)
    assert bench.status is JobStatus.FAILED
    assert bench.in_state(NodeStatus.SKIPPED) == {"a", "b", "end"}


def test_parameters_that_no_json_can_hold_fail_the_attempt():
    bench = Bench(
        a=task(), b=task("a", params={"x": "{{ nodes.a.output.n ** 99 }}"}, retry=NO_RETRY), end=end("b")
    ).start()
    bench.complete("a", {"n": 99})
    assert bench.events("b") == ["ready", "failed"]
    assert bench.status is JobStatus.FAILED


# Lost workers


def test_a_lost_worker_costs_an_attempt_and_no_pause():
    bench = one(RetryPolicy(max_attempts=1, initial_delay_seconds=60))
    bench.begin("a")
    bench.lose("a")
    assert bench.waiting == [f"{JOB}_a_1"]
    bench.lose("a")
    assert bench.status is JobStatus.FAILED


def test_what_a_worker_gives_back_costs_nothing():
    bench = one(NO_RETRY)
    for attempt in range(1, 4):
        bench.begin("a")
        bench.lose("a", given_back=True)
        assert bench.waiting == [f"{JOB}_a_{attempt}"]
    bench.fail("a")
    assert bench.status is JobStatus.FAILED


def test_a_lost_worker_is_a_warning_and_no_failure():
    bench = one(AT_ONCE)
    bench.begin("a")
    bench.lose("a")
    [event] = [event for event in bench.store.events if event.event_type == "node_failed"]
    assert (event.event_status, event.error_message) == ("warning", "worker worker was lost")


def test_what_is_said_of_an_earlier_worker_does_not_count():
    bench = one(AT_ONCE)
    bench.begin("a")
    bench.lose("a")
    bench.lose("a", task_id=f"{JOB}_a_0")
    assert bench.waiting == [f"{JOB}_a_1"]


def test_a_late_loss_of_a_completed_task_changes_nothing():
    bench = Bench(a=task(), b=task("a"), end=end("b")).start()
    bench.complete("a")
    bench.lose("a")
    assert bench.of("a") is NodeStatus.COMPLETED
    assert bench.waiting == [f"{JOB}_b_0"]


def test_children_are_retried_by_their_own_policy():
    bench = Bench(f=fan_out([1], child={"retry": RetryPolicy(max_attempts=1, initial_delay_seconds=0)}), end=end("f"))
    bench.start().fail("f__0")
    assert bench.waiting == [f"{JOB}_f__0_1"]
    bench.fail("f__0")
    assert bench.status is JobStatus.FAILED
