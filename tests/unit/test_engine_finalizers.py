"""Tolerated failures, and the finalizers that run when everything else has ended."""

from typing import Any

import pytest
from engine_bench import AT_ONCE, NO_RETRY, Bench, choose, end, fan_in, fan_out, task

from dagmaster.engine.change_set import Rules
from dagmaster.engine.messages import TimerDue, TimerKind
from dagmaster.model.states import JobStatus, NodeStatus

COMPLETED, FAILED, SKIPPED, PENDING = NodeStatus.COMPLETED, NodeStatus.FAILED, NodeStatus.SKIPPED, NodeStatus.PENDING

LAST = {"on_failure": ("alarm",), "finally": ("clean",)}


def guarded(**nodes: Any) -> Bench:
    """`a`, then `b`; an alarm of two steps, and a cleanup."""
    parts: dict[str, Any] = {
        "a": task(retry=NO_RETRY),
        "b": task("a", retry=NO_RETRY),
        "end": end("b"),
        "alarm": task(retry=NO_RETRY, params={"why": "{{ job.error }}", "who": "{{ job.failed_node }}"}),
        "siren": task("alarm", retry=NO_RETRY),
        "clean": task(retry=NO_RETRY, params={"status": "{{ job.status }}", "b": "{{ nodes.b.output }}"}),
    }
    return Bench(chains=LAST, **{**parts, **nodes}).start()


# Tolerated failures.


def test_a_job_continues_after_a_tolerated_failure():
    seen = {"a": "{{ nodes.a.status }}", "output": "{{ nodes.a.output }}"}
    bench = Bench(a=task(retry=NO_RETRY, allow_failure=True), b=task("a", params=seen), end=end("b")).start()
    bench.fail("a", "no luck")
    assert (bench.status, bench.of("a")) == (JobStatus.RUNNING, FAILED)
    assert bench.params("b") == {"a": "failed", "output": None}
    bench.complete("b")
    assert bench.status is JobStatus.COMPLETED
    assert bench.error is None and "a" not in bench.result


def test_retries_come_before_a_tolerated_failure():
    bench = Bench(a=task(retry=AT_ONCE, allow_failure=True), b=task("a"), end=end("b")).start()
    for _ in range(4):
        bench.fail("a")
    assert bench.of("a") is FAILED and bench.waiting == ["42_b_0"]


def test_a_new_owner_continues_after_a_tolerated_failure():
    bench = Bench(a=task(retry=NO_RETRY, allow_failure=True), b=task(), c=task("a", "b"), end=end("c")).start()
    bench.fail("a", "withdrawn: or so it says")
    bench.restart()
    bench.complete("b")
    bench.complete("c")
    assert bench.status is JobStatus.COMPLETED


def test_failed_children_are_none_in_the_list():
    bench = Bench(
        f=fan_out([1, 2, 3], allow_failure=True), g=fan_in("f"), h=fan_in("f", aggregation="sum"), end=end("g", "h")
    ).start()
    bench.complete("f__0", {"n": 1})
    bench.fail("f__1", "no luck")
    assert bench.of("g") is PENDING
    bench.complete("f__2", {"n": 5})
    assert bench.status is JobStatus.COMPLETED
    assert bench.output("g") == {"results": [{"n": 1}, None, {"n": 5}], "count": 3, "failed": 1}
    assert bench.output("h") == {"total": 6, "count": 2, "failed": 1}


def test_a_failed_expansion_can_be_tolerated():
    bench = Bench(inputs={"x": 1}, f=fan_out("{{ inputs.x }}", allow_failure=True), b=task("f"), end=end("b")).start()
    assert bench.of("f") is FAILED
    bench.complete("b")
    assert bench.status is JobStatus.COMPLETED


def test_a_tolerated_failure_is_not_retried_with_its_job():
    bench = Bench(
        a=task(retry=NO_RETRY, allow_failure=True), b=task("a", retry=NO_RETRY), c=task(allow_failure=True), end=end()
    ).start()
    bench.fail("a")
    bench.fail("b")
    assert bench.status is JobStatus.FAILED and bench.of("c") is FAILED
    bench.retry()
    assert bench.of("a") is FAILED
    assert set(bench.waiting) == {"42_b_1", "42_c_1"}  # c was only revoked.


# Finalizers.


def test_finally_runs_after_everything_completed():
    bench = guarded()
    bench.complete("a")
    bench.complete("b", {"x": 1})
    assert (bench.status, bench.of("alarm"), bench.of("siren")) == (JobStatus.RUNNING, SKIPPED, SKIPPED)
    assert bench.data("alarm", "node_skipped") == {"reason": "job_did_not_fail", "ended_by": "skipped"}
    assert bench.params("clean") == {"status": "completed", "b": {"x": 1}}
    bench.complete("clean", {"done": True})
    assert bench.status is JobStatus.COMPLETED
    assert bench.result["clean"] == {"done": True}


def test_on_failure_runs_before_finally():
    bench = guarded()
    bench.fail("a", "no luck")
    assert (bench.status, bench.error) == (JobStatus.RUNNING, "node a failed: no luck")
    assert bench.in_state(SKIPPED) == {"b", "end"}
    assert bench.waiting == ["42_alarm_0"]
    assert bench.params("alarm") == {"why": "node a failed: no luck", "who": "a"}
    bench.complete("alarm")
    assert bench.waiting == ["42_siren_0"]
    bench.complete("siren")
    assert bench.params("clean") == {"status": "failed", "b": None}
    bench.complete("clean")
    assert (bench.status, bench.error) == (JobStatus.FAILED, "node a failed: no luck")
    assert bench.data(None, "job_failed")["failed_nodes"] == ["a"]


@pytest.mark.parametrize("moment", ["failing", "alarming", "cleaning"])
def test_a_new_owner_continues_the_finalizers(moment: str):
    bench = guarded()
    bench.fail("a")
    if moment == "failing":
        bench.restart()
    bench.complete("alarm")
    if moment == "alarming":
        bench.restart()
    bench.complete("siren")
    if moment == "cleaning":
        bench.restart()
    bench.complete("clean")
    assert (bench.status, bench.error) == (JobStatus.FAILED, "node a failed: no luck")


def test_a_failed_step_skips_the_rest_of_its_chain():
    bench = guarded()
    bench.fail("a", "the first")
    bench.fail("alarm", "the second")
    assert bench.of("siren") is SKIPPED
    assert bench.data("siren", "node_skipped") == {"reason": "step_before_failed", "ended_by": "skipped"}
    bench.restart()
    bench.complete("clean")
    assert (bench.status, bench.error) == (JobStatus.FAILED, "node a failed: the first")
    assert bench.data(None, "job_failed")["failed_nodes"] == ["a", "alarm"]


def test_a_job_whose_finally_fails_has_failed():
    bench = guarded()
    bench.complete("a")
    bench.complete("b")
    bench.fail("clean", "no water")
    assert (bench.status, bench.error) == (JobStatus.FAILED, "node clean failed: no water")


def test_a_failure_in_finally_can_be_tolerated():
    bench = guarded(clean=task(retry=NO_RETRY, allow_failure=True))
    bench.complete("a")
    bench.complete("b")
    bench.fail("clean", "no water")
    assert bench.status is JobStatus.COMPLETED


def test_a_cancelled_job_starts_no_finalizers():
    bench = guarded()
    bench.cancel()
    assert bench.status is JobStatus.CANCELLED
    assert bench.in_state(SKIPPED) >= {"alarm", "siren", "clean"} and not bench.waiting


def test_a_job_can_be_cancelled_during_its_finalizers():
    bench = guarded()
    bench.fail("a")
    bench.cancel()
    assert (bench.status, bench.of("alarm"), bench.of("clean")) == (JobStatus.CANCELLED, FAILED, SKIPPED)


def test_a_pause_holds_finalizers_too():
    bench = guarded()
    bench.complete("a")
    bench.begin("b")
    bench.pause()
    bench.complete("b")
    bench.unpause()  # The end node was ready.
    assert bench.waiting == ["42_clean_0"]
    bench.pause()
    bench.restart()
    bench.unpause()
    bench.complete("clean")
    assert bench.status is JobStatus.COMPLETED


def test_finalizers_can_contain_a_conditional():
    bench = Bench(
        chains={"finally": ("how",)},
        a=task(retry=NO_RETRY),
        end=end("a"),
        how=choose("job.status", is_failed=("mop",), default=("wipe",)),
        mop=task(retry=NO_RETRY),
        wipe=task(retry=NO_RETRY),
    ).start()
    bench.fail("a")
    assert (bench.waiting, bench.of("wipe")) == (["42_mop_0"], SKIPPED)
    bench.complete("mop")
    assert bench.status is JobStatus.FAILED


def test_a_report_of_a_revoked_task_is_kept_and_changes_nothing():
    bench = guarded(c=task(retry=NO_RETRY))
    bench.begin("c")
    bench.fail("a")
    bench.complete("c", {"late": True}, task_id="42_c_0")
    assert bench.of("c") is FAILED and "42_c_0" in bench.store.results
    assert bench.data("c", "result_ignored")["reason"] == "the attempt was revoked"


def test_finalizers_run_again_when_the_job_is_retried():
    bench = guarded()
    bench.fail("a")
    bench.complete("alarm")
    bench.complete("siren")
    bench.complete("clean", {"round": 1})
    bench.retry()
    assert bench.in_state(PENDING) == {"b", "end", "alarm", "siren", "clean"}
    bench.restart()
    bench.complete("a")
    bench.complete("b", {"x": 2})
    assert bench.waiting == ["42_clean_1"]
    assert bench.params("clean") == {"status": "completed", "b": {"x": 2}}
    bench.complete("clean", {"round": 2})
    assert (bench.status, bench.error, bench.result["clean"]) == (JobStatus.COMPLETED, None, {"round": 2})


def impatient() -> Bench:
    """A task and a cleanup after it, in a job with a short stall limit."""
    return Bench(
        rules=Rules(zombie_after_seconds=10, dispatch_timeout_seconds=5),
        chains={"finally": ("clean",)},
        a=task(retry=NO_RETRY),
        end=end("a"),
        clean=task(retry=NO_RETRY),
    ).start()


def test_a_stalled_job_is_watched_again_during_its_finalizers():
    bench = impatient()
    bench.now = bench.now.replace(hour=5)
    bench.send(TimerDue(TimerKind.ZOMBIE))
    bench.now = bench.now.replace(hour=6)
    bench.send(TimerDue(TimerKind.ZOMBIE))
    assert (bench.status, bench.of("a"), bench.waiting) == (JobStatus.RUNNING, FAILED, ["42_clean_0"])
    assert TimerKind.ZOMBIE in {timer.kind for timer in bench.changes.timers}


def test_a_job_that_stalls_during_its_finalizers_fails():
    bench = impatient()
    bench.complete("a")
    bench.now = bench.now.replace(hour=5)
    bench.send(TimerDue(TimerKind.ZOMBIE))
    bench.now = bench.now.replace(hour=6)
    bench.send(TimerDue(TimerKind.ZOMBIE))
    assert (bench.status, bench.error) == (JobStatus.FAILED, "Timeout: no progress for 0.00277778 hours")
