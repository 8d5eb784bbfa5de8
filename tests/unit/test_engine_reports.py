"""Reports of workers count once, and only for the current attempt."""

from datetime import timedelta

import pytest
from engine_bench import AT_ONCE, JOB, Bench, end, fan_out, task

from dagmaster.engine.decide import claim_here, decide
from dagmaster.engine.messages import Load, TaskCheckpoint, TaskCompleted, TaskFailed, TaskLost, TaskStarted
from dagmaster.model.states import JobStatus, NodeStatus, TaskStatus


def chain() -> Bench:
    return Bench(a=task(retry=AT_ONCE), b=task("a"), end=end("b")).start()


def test_a_report_for_a_dispatched_task_proves_that_it_ran():
    """It passes through RUNNING in the same change set."""
    bench = chain()
    bench.complete("a", {"x": 1})
    assert bench.events("a") == ["ready", "dispatched", "started", "completed"]
    assert f"{JOB}_a_0" not in bench.waiting


def test_the_accepted_result_is_kept():
    bench = chain()
    bench.complete("a", {"x": 1})
    result = bench.store.results[f"{JOB}_a_0"]
    assert (result.status, result.output, result.worker_id) == (TaskStatus.COMPLETED, b'{"x":1}', "worker")


def test_the_same_report_again_changes_nothing():
    bench = chain()
    bench.complete("a", {"x": 1})
    changes = bench.complete("a", {"x": 2})
    assert not changes.events and not changes.touched and not changes.results
    assert bench.output("a") == {"x": 1}


def test_the_first_of_two_reports_in_a_batch_counts():
    bench = chain()
    bench.send(bench.completed("a", {"x": 1}), TaskFailed("a", f"{JOB}_a_0", "other", bench.now, "no luck"))
    assert (bench.of("a"), bench.output("a")) == (NodeStatus.COMPLETED, {"x": 1})
    assert bench.store.results[f"{JOB}_a_0"].status is TaskStatus.COMPLETED


def test_a_failure_after_a_success_changes_nothing():
    bench = chain()
    bench.complete("a")
    bench.fail("a", permanent=True)
    assert (bench.of("a"), bench.status) == (NodeStatus.COMPLETED, JobStatus.RUNNING)


def test_a_repeated_start_changes_nothing():
    bench = chain()
    bench.begin("a")
    assert not bench.begin("a").events


def test_a_start_that_arrives_after_the_end_changes_nothing():
    bench = chain()
    bench.complete("a")
    assert not bench.begin("a").events


def test_a_superseded_success_is_kept_recorded_and_ignored():
    bench = chain()
    bench.begin("a")
    bench.lose("a")
    changes = bench.complete("a", {"late": True}, task_id=f"{JOB}_a_0")
    assert (bench.of("a"), bench.store.nodes["a"].attempt) == (NodeStatus.DISPATCHED, 1)
    assert [event.event_type for event in changes.events] == ["result_ignored"]
    assert bench.data("a", "result_ignored") == {
        "reason": "the attempt was superseded",
        "reported_task_id": f"{JOB}_a_0",
        "worker_id": "worker",
    }
    assert bench.store.results[f"{JOB}_a_0"].output == b'{"late":true}'
    bench.complete("a", {"x": 1})
    assert bench.output("a") == {"x": 1}


def test_a_superseded_failure_uses_no_attempt():
    bench = chain()
    bench.lose("a")
    bench.fail("a", task_id=f"{JOB}_a_0", permanent=True)
    assert (bench.status, bench.store.nodes["a"].attempt) == (JobStatus.RUNNING, 1)


def test_a_result_for_an_ended_job_is_kept_and_recorded():
    bench = Bench(a=task(), b=task(), end=end("a", "b")).start()
    bench.cancel()
    changes = bench.complete("a", {"late": True}, task_id=f"{JOB}_a_0")
    assert [event.event_type for event in changes.events] == ["result_ignored"]
    assert bench.store.results[f"{JOB}_a_0"].status is TaskStatus.COMPLETED
    assert (bench.status, bench.of("a")) == (JobStatus.CANCELLED, NodeStatus.FAILED)


@pytest.mark.parametrize(
    ("node_id", "task_id"),
    [
        ("a", f"{JOB}_a_1"),
        ("a", f"{JOB}_a_x"),
        ("a", f"{JOB}_a"),
        ("a", f"{JOB + 1}_a_0"),
        ("a", f"{JOB}_b_0"),
        ("ghost", f"{JOB}_ghost_0"),
        ("start", f"{JOB}_start_0"),
        ("end", f"{JOB}_end_0"),
        ("", ""),
    ],
)
def test_a_forged_report_changes_nothing(node_id: str, task_id: str):
    bench = chain()
    before = dict(bench.store.nodes)
    for message in (
        TaskStarted(node_id, task_id, "forger", bench.now),
        TaskCompleted(node_id, task_id, "forger", bench.now, b"{}"),
        TaskFailed(node_id, task_id, "forger", bench.now, "forged", permanent=True),
        TaskLost(node_id, task_id, "forger", bench.now, given_back=True),
    ):
        assert not bench.send(message).events
    assert bench.store.nodes == before
    assert not bench.store.results


def test_a_forged_result_of_a_future_attempt_does_not_replace_it():
    bench = chain()
    bench.send(TaskCompleted("a", f"{JOB}_a_1", "forger", bench.now, b'{"forged":true}'))
    bench.lose("a")
    bench.complete("a", {"x": 1})
    assert bench.output("a") == {"x": 1}
    assert bench.store.results[f"{JOB}_a_1"].output == b'{"x":1}'


def test_a_child_cannot_be_reported_under_the_id_of_its_fan_out():
    """Its task id starts like one of the fan-out's own."""
    bench = Bench(f=fan_out([1, 2], max_parallel=1), end=end("f")).start()
    bench.send(TaskCompleted("f", f"{JOB}_f__1_0", "forger", bench.now, b'{"forged":true}'))
    assert not bench.store.results


def test_a_report_for_a_waiting_node_changes_nothing():
    bench = chain()
    bench.complete("b")
    assert bench.of("b") is NodeStatus.PENDING
    assert not bench.store.results


def test_a_local_worker_claims_its_task_in_the_same_change_set():
    bench = Bench(a=task(), end=end("a"))
    changes = decide(bench.job, [Load()], bench.now, bench.rules)
    [dispatch] = changes.dispatches.values()
    claim_here(changes, dispatch, "local")
    assert dispatch.node.status is NodeStatus.RUNNING
    assert changes.events[-1].event_type == "node_started"


def test_a_local_claim_skips_children_over_max_parallel():
    """A former bug: it took them out of the queue, and they were never started."""
    bench = Bench(f=fan_out([1, 2, 3], max_parallel=1), end=end("f"))
    changes = decide(bench.job, [Load()], bench.now, bench.rules)
    [dispatch] = changes.dispatches.values()
    claim_here(changes, dispatch, "local")
    assert list(bench.job.fans["f"].waiting) == ["f__1", "f__2"]
    assert not changes.ready


def test_a_checkpoint_is_saved_with_the_current_attempt():
    bench = chain()
    bench.begin("a")
    changes = bench.send(TaskCheckpoint("a", f"{JOB}_a_0", "worker", bench.now, "read", b'{"rows":3}'))
    [event] = changes.events
    assert (event.event_type, event.checkpoint_name) == ("node_checkpoint", "read")
    assert changes.touched["a"].status is NodeStatus.RUNNING


def test_a_checkpoint_of_an_ended_attempt_changes_nothing():
    bench = chain()
    bench.begin("a")
    bench.fail("a")
    for task_id in (f"{JOB}_a_0", f"{JOB}_a_7", f"{JOB}_b_0"):
        changes = bench.send(TaskCheckpoint("a", task_id, "worker", bench.now, "late"))
        assert not changes.events and not changes.touched


def test_times_are_measured_by_the_worker_however_late_they_are_written():
    bench = chain()
    dispatched_at = bench.now
    bench.begin("a")
    ended_at = bench.now + timedelta(seconds=2)
    bench.wait(10)
    bench.send(TaskCompleted("a", f"{JOB}_a_0", "worker", ended_at, b"{}", 500))
    node = bench.job.nodes["a"]
    assert (node.started_at, node.completed_at) == (ended_at - timedelta(milliseconds=500), ended_at)
    assert node.dispatched_at == dispatched_at
    assert bench.job.nodes["b"].dispatched_at == bench.now


def test_a_result_without_a_duration_has_the_same_one_in_its_node_and_in_the_timeline():
    bench = chain()
    bench.begin("a")
    started_at, ended_at = bench.now, bench.now + timedelta(seconds=2)
    bench.wait(10)
    changes = bench.send(TaskCompleted("a", f"{JOB}_a_0", "worker", ended_at, b"{}"))
    node = bench.job.nodes["a"]
    assert (node.started_at, node.completed_at) == (started_at, ended_at)
    assert [event.duration_ms for event in changes.events if event.event_type == "node_completed"] == [2000]


def test_a_permanent_failure_has_the_times_of_its_last_attempt():
    bench = chain()
    ended_at = bench.now + timedelta(seconds=2)
    bench.wait(10)
    bench.send(TaskFailed("a", f"{JOB}_a_0", "worker", ended_at, "no luck", permanent=True, duration_ms=500))
    node = bench.job.nodes["a"]
    assert (node.started_at, node.completed_at) == (ended_at - timedelta(milliseconds=500), ended_at)


def test_a_fast_worker_clock_ends_nothing_in_the_future_or_before_its_dispatch():
    bench = chain()
    at = bench.now + timedelta(hours=2)
    bench.send(TaskCompleted("a", f"{JOB}_a_0", "worker", at, b"{}", 60_000))
    node = bench.job.nodes["a"]
    assert (node.started_at, node.completed_at) == (node.dispatched_at, bench.now)
