"""Failed attempts: how often they are retried, and after which delay."""

from datetime import timedelta
from typing import Any

import pytest
from engine_bench import AT_ONCE, JOB, NO_RETRY, START, Bench, choose, end, fan_out, task

from dagmaster.engine.change_set import Rules
from dagmaster.model.retry import WRONG_CALL, Backoff, RetryPolicy
from dagmaster.model.states import JobStatus, NodeStatus


def single_node(policy: RetryPolicy, rules: Rules | None = None) -> Bench:
    return Bench(None, rules, a=task(retry=policy), end=end("a")).start()


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_max_attempts_counts_the_retries(retries: int):
    bench = single_node(RetryPolicy(max_attempts=retries, initial_delay_seconds=0))
    for _ in range(retries):
        bench.fail("a")
        assert bench.status is JobStatus.RUNNING
    bench.fail("a")
    assert bench.status is JobStatus.FAILED
    assert bench.events("a").count("dispatched") == retries + 1


def test_a_retried_node_starts_over():
    bench = single_node(AT_ONCE)
    bench.begin("a")
    bench.fail("a", "no luck")
    row = bench.store.nodes["a"]
    assert (row.status, row.attempt, row.task_id) == (NodeStatus.DISPATCHED, 1, f"{JOB}_a_1")
    assert (row.started_at, row.completed_at, row.error, row.output) == (None, None, None, None)
    assert bench.waiting == [f"{JOB}_a_1"]


def test_the_timeline_records_the_failure_and_the_retry():
    bench = single_node(RetryPolicy(max_attempts=1, initial_delay_seconds=7))
    bench.fail("a", "no luck")
    assert bench.events("a") == ["ready", "dispatched", "started", "failed", "retrying"]
    assert bench.data("a", "node_failed") == {"will_retry": True, "worker_id": "worker", "ended_by": "failure"}
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
def test_the_retry_waits_for_its_back_off(backoff: Backoff, delays: list[int]):
    """Up to the maximum delay."""
    policy = RetryPolicy(max_attempts=3, backoff=backoff, initial_delay_seconds=10, max_delay_seconds=25)
    bench = single_node(policy)
    for attempt, delay in enumerate(delays, start=1):
        bench.fail("a")
        bench.wait(delay - 0.001)
        assert (bench.of("a"), bench.waiting) == (NodeStatus.READY, [])
        bench.wait(0.001)
        assert bench.waiting == [f"{JOB}_a_{attempt}"]


def test_exponential_delays_double():
    bench = single_node(RetryPolicy(max_attempts=3, initial_delay_seconds=10, max_delay_seconds=1000))
    for delay in (10, 20, 40):
        bench.fail("a")
        assert bench.store.nodes["a"].not_before == bench.now + timedelta(seconds=delay)
        bench.wait(delay)


def test_jitter_spreads_the_delays():
    child = {"retry": RetryPolicy(initial_delay_seconds=10, jitter=0.2)}
    bench = Bench({"items": list(range(20))}, f=fan_out("{{ inputs.items }}", child=child), end=end("f")).start()
    waits = set()
    for index in range(20):
        bench.fail(f"f__{index}")
        not_before = bench.store.nodes[f"f__{index}"].not_before
        assert not_before is not None
        waits.add((not_before - bench.now).total_seconds())
    assert len(waits) == 20 and 8 <= min(waits) < 10 < max(waits) <= 12


def test_the_delay_is_deterministic():
    benches = [single_node(RetryPolicy(initial_delay_seconds=10, jitter=0.2)) for _ in range(2)]
    for bench in benches:
        bench.fail("a")
    assert benches[0].store.nodes["a"].not_before == benches[1].store.nodes["a"].not_before


def test_a_worker_can_choose_the_retry_delay():
    bench = single_node(RetryPolicy(initial_delay_seconds=5))
    bench.fail("a", retry_after_seconds=120)
    bench.wait(119)
    assert not bench.waiting
    bench.wait(1)
    assert bench.waiting == [f"{JOB}_a_1"]


def test_a_back_off_continues_after_a_takeover():
    bench = single_node(RetryPolicy(initial_delay_seconds=60))
    bench.fail("a")
    bench.wait(30)
    bench.restart()
    assert not bench.waiting
    bench.wait(30)
    assert bench.waiting == [f"{JOB}_a_1"]


def test_a_back_off_that_ended_without_an_owner_is_over():
    bench = single_node(RetryPolicy(initial_delay_seconds=60))
    bench.fail("a")
    bench.now += timedelta(hours=1)
    bench.restart()
    bench.wait(0)
    assert bench.waiting == [f"{JOB}_a_1"]


def test_a_permanent_error_is_not_retried():
    bench = single_node(AT_ONCE)
    bench.fail("a", "wrong input", permanent=True)
    assert bench.events("a").count("dispatched") == 1
    assert bench.error == "node a failed: wrong input"


def test_a_failing_expression_is_a_failed_attempt():
    """READY to FAILED, with retry."""
    policy = RetryPolicy(max_attempts=1, initial_delay_seconds=5, on=["ExpressionFailed"])
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


def test_a_failing_condition_is_retried_and_then_fails_the_job():
    policy = RetryPolicy(max_attempts=1, initial_delay_seconds=5, on=["ExpressionFailed"])
    route = choose("inputs.object.missing", is_1=("a",), default=("b",)).model_copy(update={"retry": policy})
    bench = Bench({"object": {}}, route=route, a=task(), b=task(), end=end("a", "b")).start()
    assert bench.events("route") == ["ready", "failed", "retrying"]
    bench.wait(5)
    assert bench.status is JobStatus.FAILED
    assert bench.in_state(NodeStatus.SKIPPED) == {"a", "b", "end"}


def test_parameters_that_are_not_json_fail_the_attempt():
    bench = Bench(
        a=task(), b=task("a", params={"x": "{{ nodes.a.output.n ** 99 }}"}, retry=NO_RETRY), end=end("b")
    ).start()
    bench.complete("a", {"n": 99})
    assert bench.events("b") == ["ready", "failed"]
    assert bench.status is JobStatus.FAILED


# Lost workers


def test_a_lost_worker_costs_an_attempt_without_back_off():
    bench = single_node(RetryPolicy(max_attempts=1, initial_delay_seconds=60))
    bench.begin("a")
    bench.lose("a")
    assert bench.waiting == [f"{JOB}_a_1"]
    bench.lose("a")
    assert bench.status is JobStatus.FAILED


def test_a_returned_task_costs_no_attempt():
    bench = single_node(NO_RETRY)
    for attempt in range(1, 4):
        bench.begin("a")
        bench.lose("a", given_back=True)
        assert bench.waiting == [f"{JOB}_a_{attempt}"]
    bench.fail("a")
    assert bench.status is JobStatus.FAILED


def test_a_task_that_loses_several_workers_is_poisoned():
    bench = single_node(RetryPolicy(max_attempts=50), Rules(max_worker_deaths=3))
    for _ in range(2):
        bench.begin("a")
        bench.lose("a")
    bench.lose("a", given_back=True)
    bench.lose("a")
    assert bench.status is JobStatus.FAILED
    assert bench.job.error == (
        "node a failed: worker worker was lost: 3 workers in a row died while they ran this task, so it is not retried"
    )


def test_a_failed_attempt_does_not_count_as_poison():
    bench = single_node(RetryPolicy(max_attempts=50, initial_delay_seconds=0), Rules(max_worker_deaths=2))
    for _ in range(3):
        bench.lose("a")
        bench.fail("a")
    assert bench.status is JobStatus.RUNNING


def test_a_lost_worker_is_a_warning_not_a_failure():
    bench = single_node(AT_ONCE)
    bench.begin("a")
    bench.lose("a")
    [event] = [event for event in bench.store.events if event.event_type == "node_failed"]
    assert (event.event_status, event.error_message) == ("warning", "worker worker was lost")


def test_a_report_about_an_earlier_worker_is_ignored():
    bench = single_node(AT_ONCE)
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


# Retry rules

REFUSED = ("ConnectionRefusedError", "ConnectionError", "OSError", "Exception")
EXHAUSTED = ("MemoryError", "Exception")


def ruled(**rules: Any) -> Bench:
    return single_node(RetryPolicy(max_attempts=2, initial_delay_seconds=0, **rules))


def test_an_error_in_never_fails_the_job_at_once():
    bench = ruled(never=["OSError"])
    bench.fail("a", "refused", error_types=REFUSED)
    assert bench.data("a", "node_failed") == {
        "will_retry": False,
        "error_type": "ConnectionRefusedError",
        "retry_rule": "never: OSError",
        "worker_id": "worker",
        "ended_by": "failure",
    }
    assert (bench.status, bench.error) == (JobStatus.FAILED, "node a failed: refused")


def test_with_a_list_of_errors_only_those_are_retried():
    bench = ruled(on=["ConnectionError"])
    bench.fail("a", error_types=REFUSED)
    assert bench.data("a", "node_failed") == {
        "will_retry": True,
        "error_type": "ConnectionRefusedError",
        "worker_id": "worker",
        "ended_by": "failure",
    }
    assert bench.waiting == [f"{JOB}_a_1"]
    bench.fail("a", error_types=("ValueError", "Exception"))
    assert bench.data("a", "node_failed")["retry_rule"] == "on: ConnectionError"
    assert bench.status is JobStatus.FAILED


def test_a_rule_is_named_only_if_it_ended_the_retries():
    bench = single_node(RetryPolicy(max_attempts=0, never=["OSError"]))
    bench.fail("a", error_types=REFUSED)
    assert "retry_rule" not in bench.data("a", "node_failed")
    bench = ruled(never=["OSError"])
    bench.fail("a", error_types=REFUSED, permanent=True)
    assert "retry_rule" not in bench.data("a", "node_failed")


def test_a_failure_without_a_known_class_is_not_retried_by_a_list():
    bench = ruled(on=["ConnectionError"])
    bench.fail("a")
    assert bench.status is JobStatus.FAILED
    bench = ruled(never=["ConnectionError"])
    bench.fail("a")
    assert bench.waiting == [f"{JOB}_a_1"]


def test_a_handler_that_requests_a_retry_is_retried_whatever_is_listed():
    bench = ruled(on=["ConnectionError"])
    bench.fail("a", retry_after_seconds=3, error_types=("Retry", "dagmaster.handlers.contract.Retry", "Exception"))
    bench.wait(3)
    bench.fail("a", retry_after_seconds=3)
    bench.wait(3)
    assert bench.waiting == [f"{JOB}_a_2"]
    bench = ruled(never=["ValueError"])
    bench.fail("a", retry_after_seconds=3, error_types=("ValueError", "Exception"))
    assert bench.status is JobStatus.FAILED


@pytest.mark.parametrize("rules", [{"on": ["ValueError"]}, {"never": ["Exception"]}])
def test_retry_rules_do_not_apply_to_lost_workers(rules: dict[str, Any]):
    bench = ruled(**rules)
    bench.begin("a")
    bench.lose("a")
    bench.begin("a")
    bench.lose("a", given_back=True)
    assert bench.waiting == [f"{JOB}_a_2"]
    assert "error_type" not in bench.data("a", "node_failed")


@pytest.mark.parametrize(
    ("rules", "is_retried"),
    [({}, True), ({"on": ["OSError"]}, True), ({"on": ["ValueError"]}, False), ({"never": ["TimeoutError"]}, False)],
)
@pytest.mark.parametrize("begins", [True, False])
def test_a_timeout_is_a_timeout_error(rules: dict[str, Any], is_retried: bool, begins: bool):
    bench = ruled(**rules)
    if begins:
        bench.begin("a")
    bench.wait(3700)
    assert bench.data("a", "node_failed")["error_type"] == "TimeoutError"
    assert (bench.status is JobStatus.RUNNING) is is_retried


@pytest.mark.parametrize(
    ("rules", "retries"),
    [
        ({}, 0),
        ({"on": ["ValueError"]}, 0),
        ({"on": ["ExpressionFailed"]}, 2),
        ({"on": ["Exception"], "never": ["ExpressionFailed"]}, 0),
    ],
)
def test_a_failing_expression_is_retried_only_if_the_policy_names_it(rules: dict[str, Any], retries: int):
    """Otherwise a typo takes 38 seconds to be reported."""
    policy = RetryPolicy(max_attempts=2, initial_delay_seconds=0, **rules)
    bench = Bench({"object": {}}, a=task(params={"x": "{{ inputs.object.missing }}"}, retry=policy), end=end("a"))
    bench.start()
    assert bench.data("a", "node_failed")["error_type"] == "ExpressionFailed"
    assert bench.events("a").count("retrying") == retries
    assert bench.status is JobStatus.FAILED


@pytest.mark.parametrize(
    ("error_types", "is_retried"),
    [
        (("NameError", "Exception"), False),
        (("UnboundLocalError", "NameError", "Exception"), False),
        (("TypeError", "Exception", WRONG_CALL), False),
        (("TypeError", "Exception"), True),
        (("ZeroDivisionError", "ArithmeticError", "Exception"), True),
    ],
)
def test_call_errors_are_retried_only_if_the_policy_names_them(error_types: tuple[str, ...], is_retried: bool):
    bench = ruled()
    bench.fail("a", error_types=error_types)
    assert (bench.status is JobStatus.RUNNING) is is_retried
    if not is_retried:
        assert bench.data("a", "node_failed")["retry_rule"] == f"by default: {error_types[0]}"
    named = ruled(on=[error_types[0]])
    named.fail("a", error_types=error_types)
    assert named.status is JobStatus.RUNNING


# Out of memory


def test_a_task_out_of_memory_moves_to_the_on_oom_queue():
    bench = ruled(on_oom="heavy")
    assert bench.data("a", "node_dispatched")["queue"] == "tasks"
    bench.fail("a", error_types=EXHAUSTED)
    assert bench.data("a", "node_retrying")["queue"] == "heavy"
    assert bench.data("a", "node_dispatched")["queue"] == "heavy"
    assert [row.queue for row in bench.store.waiting.values()] == ["heavy"]


def test_other_errors_do_not_change_the_queue():
    bench = ruled(on_oom="heavy")
    bench.fail("a", error_types=REFUSED)
    assert "queue" not in bench.data("a", "node_retrying")
    assert [row.queue for row in bench.store.waiting.values()] == ["tasks"]


def test_the_node_stays_in_the_on_oom_queue_afterwards():
    bench = ruled(on_oom="heavy")
    bench.fail("a", error_types=EXHAUSTED)
    bench.restart()
    bench.fail("a", error_types=REFUSED)
    assert [row.queue for row in bench.store.waiting.values()] == ["heavy"]
    bench.fail("a", error_types=REFUSED)
    bench.retry("a")
    assert [row.queue for row in bench.store.waiting.values()] == ["heavy"]
    bench.complete("a")
    assert bench.status is JobStatus.COMPLETED


def test_running_out_of_memory_in_the_last_attempt_counts_for_a_manual_retry():
    bench = single_node(RetryPolicy(max_attempts=0, on_oom="heavy"))
    bench.fail("a", error_types=EXHAUSTED)
    assert bench.status is JobStatus.FAILED
    bench.retry("a")
    assert [row.queue for row in bench.store.waiting.values()] == ["heavy"]


def test_only_the_child_that_ran_out_of_memory_changes_its_queue():
    policy = RetryPolicy(max_attempts=1, initial_delay_seconds=0, on_oom="heavy")
    bench = Bench(f=fan_out([1, 2], child={"retry": policy}), end=end("f")).start()
    bench.fail("f__1", error_types=EXHAUSTED)
    assert {row.node_id: row.queue for row in bench.store.waiting.values()} == {"f__0": "tasks", "f__1": "heavy"}


def test_a_full_queue_holds_only_its_own_tasks():
    bench = ruled(on_oom="heavy")
    bench.close_queue("tasks")
    bench.fail("a", error_types=EXHAUSTED)
    assert bench.waiting == [f"{JOB}_a_1"]
    bench.close_queue("heavy")
    bench.fail("a", error_types=EXHAUSTED)
    assert not bench.waiting
    bench.open_queue("tasks")
    assert not bench.waiting
    bench.open_queue("heavy")
    assert bench.waiting == [f"{JOB}_a_2"]


def test_a_queue_timeout_names_the_current_queue():
    bench = ruled(on_oom="heavy")
    bench.fail("a", error_types=EXHAUSTED)
    bench.wait(3700)
    [event] = [event for event in bench.store.events if (event.event_data or {}).get("timeout") == "dispatch"]
    assert event.error_message == "no worker took it from queue 'heavy' within 3600 s"
