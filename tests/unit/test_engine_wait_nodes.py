"""Nodes that wait in the engine: for a time, a signal, a decision or another job."""

from datetime import timedelta
from typing import Any

import orjson
import pytest
from engine_bench import START, Bench, after, end, task

from dagmaster.engine.change_set import ChangeSet, Rules
from dagmaster.engine.messages import ApprovalDecision, SignalSent, TaskCompleted, TaskFailed, TaskLost
from dagmaster.engine.wait_nodes import MAX_KEPT_SIGNALS
from dagmaster.model.retry import RetryPolicy
from dagmaster.model.states import JobStatus, NodeStatus
from dagmaster.model.workflow import ApprovalNode, WaitNode, WorkflowNode

COMPLETED, FAILED, RUNNING = NodeStatus.COMPLETED, NodeStatus.FAILED, NodeStatus.RUNNING


def waiting(*all_of: str, **fields: Any) -> WaitNode:
    return WaitNode(depends_on=after(*all_of), **fields)


def signal(bench: Bench, name: str = "go", data: Any = None, actor: str | None = "ann") -> ChangeSet:
    return bench.send(SignalSent(name, data, bench.now, actor))


def decide_on(bench: Bench, node_id: str, approved: bool, comment: str | None = None, task_id: str = "") -> ChangeSet:
    return bench.send(ApprovalDecision(node_id, task_id or bench.task_id(node_id), approved, bench.now, "ann", comment))


# A time.


def test_a_timed_wait_completes_when_it_expires():
    bench = Bench(w=waiting(seconds=90), a=task("w"), end=end("a")).start()
    assert bench.of("w") is RUNNING and not bench.waiting
    assert bench.store.nodes["w"].not_before == START + timedelta(seconds=90)
    bench.wait(89)
    assert bench.of("w") is RUNNING
    bench.wait(1)
    assert bench.output("w") == {"waited_seconds": 90.0, "signal": None}
    assert bench.waiting == ["42_a_0"]


def test_a_new_owner_completes_the_wait_at_the_same_time():
    bench = Bench(w=waiting(seconds=90), end=end("w")).start()
    bench.wait(60)
    bench.restart()
    bench.wait(29)
    assert bench.of("w") is RUNNING
    bench.wait(1)
    assert bench.status is JobStatus.COMPLETED


def test_a_wait_until_a_past_time_completes_at_once():
    bench = Bench({"at": "2029-12-31T23:59:59Z"}, w=waiting(until="{{ inputs.at }}"), end=end("w")).start()
    assert bench.status is JobStatus.COMPLETED


def test_a_wait_until_a_time_respects_its_time_zone():
    bench = Bench({"at": "2030-01-01T02:00:10+02:00"}, w=waiting(until="{{ inputs.at }}"), end=end("w")).start()
    bench.wait(9)
    assert bench.of("w") is RUNNING
    bench.wait(1)
    assert bench.status is JobStatus.COMPLETED


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"until": "{{ inputs.x }}"}, "is not a time"),
        ({"seconds": "{{ inputs.x }}"}, "must be a number from 0 to 31622400, not 'soon'"),
        ({"seconds": "{{ inputs.minus }}"}, "must be a number from 0"),
    ],
)
def test_a_wait_until_an_invalid_time_fails(fields: dict[str, Any], error: str):
    bench = Bench({"x": "soon", "minus": -1}, w=waiting(**fields), end=end("w")).start()
    assert bench.status is JobStatus.FAILED
    assert error in str(bench.error)


def test_a_long_wait_is_not_a_stall():
    bench = Bench(
        rules=Rules(zombie_after_seconds=60), w=waiting(seconds=3600), s=waiting(signal="go"), end=end("w", "s")
    )
    bench.start()
    bench.wait(3599)
    assert bench.status is JobStatus.RUNNING
    bench.wait(86_400)
    signal(bench)
    assert bench.status is JobStatus.COMPLETED


# A signal.


def test_a_signal_completes_all_nodes_that_wait_for_it():
    bench = Bench(a=waiting(signal="go"), b=waiting(signal="go"), c=waiting(signal="stop"), end=end("a", "b", "c"))
    bench.start()
    bench.wait(5)
    signal(bench, data={"x": [1]})
    assert bench.in_state(RUNNING) == {"c"}
    assert bench.output("a") == {"waited_seconds": 5.0, "signal": {"name": "go", "data": {"x": [1]}, "actor": "ann"}}
    assert bench.data(None, "signal_received") == {"name": "go", "actor": "ann", "woke": ["a", "b"], "kept": False}


def test_an_early_signal_is_kept_for_the_first_wait():
    bench = Bench(a=task(), w=waiting("a", signal="go"), v=waiting("w", signal="go"), end=end("v")).start()
    signal(bench, data=1)
    signal(bench, data=2)
    bench.restart()
    bench.complete("a")
    assert [bench.output(name)["signal"]["data"] for name in ("w", "v")] == [1, 2]
    assert bench.status is JobStatus.COMPLETED and not bench.store.job.signals


def test_a_signal_after_the_jobs_end_is_an_event():
    bench = Bench(w=waiting(signal="go"), end=end("w")).start()
    bench.send(*(SignalSent("go", None, bench.now, actor) for actor in ("ann", "bob")))
    assert bench.status is JobStatus.COMPLETED and not bench.store.job.signals
    late = {"name": "go", "actor": "bob", "woke": [], "kept": False, "reason": "the job has ended"}
    assert bench.data(None, "signal_received") == late


def test_a_signal_before_the_jobs_start_is_kept():
    bench = Bench(w=waiting(signal="go"), end=end("w"))
    signal(bench)
    assert bench.status is JobStatus.PENDING
    bench.start()
    assert bench.status is JobStatus.COMPLETED


def test_the_number_of_kept_signals_is_limited():
    bench = Bench(w=waiting(signal="go"), end=end("w"))
    bench.send(*(SignalSent("other", None, bench.now) for _ in range(MAX_KEPT_SIGNALS + 1)))
    assert len(bench.store.job.signals) == MAX_KEPT_SIGNALS
    assert "is dropped" in bench.data(None, "job_warning")["warning"]


def test_a_signal_can_time_out():
    bench = Bench(w=waiting(signal="go", timeout_seconds=10), end=end("w")).start()
    bench.wait(10)
    assert (bench.status, bench.error) == (
        JobStatus.FAILED,
        "node w failed: timed out: signal 'go' did not arrive within 10 s",
    )


def test_a_signal_in_time_cancels_the_timeout():
    bench = Bench(w=waiting(signal="go", timeout_seconds=10), a=task("w"), end=end("a")).start()
    signal(bench)
    bench.wait(60)
    assert bench.of("w") is COMPLETED and bench.store.nodes["w"].not_before is None


def test_a_paused_job_accepts_signals_and_starts_nothing():
    bench = Bench(w=waiting(signal="go"), a=task("w"), end=end("a")).start()
    bench.pause()
    signal(bench)
    assert bench.of("w") is COMPLETED and not bench.waiting
    bench.unpause()
    assert bench.waiting == ["42_a_0"]


def test_waits_are_revoked_with_their_job():
    bench = Bench(w=waiting(signal="go"), v=waiting(seconds=10), end=end("w", "v")).start()
    bench.cancel()
    assert bench.in_state(FAILED) == {"w", "v"}
    bench.wait(20)
    assert bench.status is JobStatus.CANCELLED


# A decision.


def approval(**fields: Any) -> Bench:
    node = ApprovalNode(message="Ship {{ inputs.what }}?", approvers=("ann", "bob"), **fields)
    return Bench({"what": "it"}, ask=node, ship=task("ask"), end=end("ship")).start()


def test_an_approval_waits_for_a_decision():
    bench = approval()
    assert bench.of("ask") is RUNNING
    assert bench.params("ask") == {"message": "Ship it?", "approvers": ["ann", "bob"]}
    request = bench.data("ask", "approval_requested")
    assert (request["message"], request["approvers"]) == ("Ship it?", ["ann", "bob"])


def test_the_approver_is_in_the_output():
    bench = approval()
    decide_on(bench, "ask", True, "looks good")
    assert bench.output("ask") == {
        "approved": True,
        "by": "ann",
        "comment": "looks good",
        "at": "2030-01-01T00:00:00+00:00",
    }
    assert bench.waiting == ["42_ship_0"]
    decide_on(bench, "ask", False)
    assert bench.status is JobStatus.RUNNING


def test_a_rejection_fails_the_node_permanently():
    bench = approval()
    decide_on(bench, "ask", False, "not today")
    assert (bench.status, bench.error) == (JobStatus.FAILED, "node ask failed: rejected by ann: not today")
    assert bench.data("ask", "approval_decided") == {"approved": False, "by": "ann", "comment": "not today"}


def test_a_rejection_can_be_tolerated():
    bench = approval(allow_failure=True)
    decide_on(bench, "ask", False)
    assert bench.waiting == ["42_ship_0"]


def test_an_approval_can_time_out():
    bench = approval(timeout_seconds=60)
    bench.wait(30)
    bench.restart()
    bench.wait(30)
    assert bench.error == "node ask failed: timed out: nobody decided within 60 s"


def test_a_decision_counts_only_for_the_current_attempt():
    bench = approval(timeout_seconds=60)
    bench.wait(60)
    bench.retry()
    assert bench.of("ask") is RUNNING
    decide_on(bench, "ask", True, task_id="42_ask_0")
    decide_on(bench, "ship", True)
    decide_on(bench, "nobody", True, task_id="42_nobody_0")
    assert bench.of("ask") is RUNNING
    decide_on(bench, "ask", True)
    assert bench.of("ask") is COMPLETED


# Another job.


def calling(**fields: Any) -> Bench:
    node = WorkflowNode(workflow="other", workflow_hash="h", inputs={"x": "{{ inputs.x }}"}, **fields)
    return Bench({"x": 7}, sub=node, a=task("sub"), end=end("a")).start()


def report(bench: Bench, output: Any, task_id: str | None = None, worker: str | None = None) -> ChangeSet:
    task_id = task_id or bench.task_id("sub")
    return bench.send(TaskCompleted("sub", task_id, worker, bench.now, orjson.dumps(output)))


def test_a_child_is_started_after_the_commit():
    bench = calling()
    [call] = bench.changes.new_child_jobs.values()
    assert (call.node_id, call.task_id, call.workflow_hash, call.inputs) == ("sub", "42_sub_0", "h", b'{"x":7}')
    report(bench, {"job_id": "8", "result": {"y": 1}})
    assert bench.output("sub") == {"job_id": "8", "result": {"y": 1}}
    assert bench.waiting == ["42_a_0"]


def test_a_new_owner_starts_the_child_again():
    bench = calling()
    bench.restart()
    assert list(bench.changes.new_child_jobs) == ["42_sub_0"]


def test_a_failed_child_fails_its_caller_or_is_retried():
    bench = calling(retry=RetryPolicy(max_attempts=1, initial_delay_seconds=0))
    failure = TaskFailed("sub", "42_sub_0", None, bench.now, "job 8 failed: no luck", error_types=("JobFailed",))
    bench.send(failure)
    assert list(bench.changes.new_child_jobs) == ["42_sub_1"]
    report(bench, {"job_id": "9", "result": {}})
    assert bench.waiting == ["42_a_0"]


def test_without_a_retry_policy_a_child_runs_once():
    bench = calling()
    bench.send(TaskFailed("sub", "42_sub_0", None, bench.now, "job 8 failed: no luck"))
    assert bench.error == "node sub failed: job 8 failed: no luck"


def test_a_child_is_cancelled_with_its_job():
    bench = calling()
    bench.cancel()
    assert bench.changes.cancelled_children == ["42_sub_0"] and not bench.changes.new_child_jobs


def test_a_child_that_times_out_is_cancelled():
    bench = calling(timeout_seconds=60)
    bench.wait(60)
    assert bench.changes.cancelled_children == ["42_sub_0"]
    assert bench.error == "node sub failed: timed out: its child job did not end within 60 s"


def test_a_worker_cannot_report_for_a_child_job():
    bench = calling()
    report(bench, {"forged": True}, worker="worker")
    bench.send(TaskLost("sub", "42_sub_0", "worker", bench.now))
    report(bench, {"old": True}, task_id="42_sub_7")
    assert bench.of("sub") is RUNNING
