"""A job ends once: completed, failed or cancelled. Nothing stays open or continues."""

from engine_bench import AT_ONCE, JOB, NO_RETRY, START, Bench, choose, end, fan_out, task

from dagmaster.engine.change_set import MAX_ERROR_LENGTH, Rules
from dagmaster.engine.decide import decide
from dagmaster.engine.messages import Cancel, Expand, Load, Message, TimerDue, TimerKind
from dagmaster.model.states import JobStatus, NodeStatus

FAILED, SKIPPED = NodeStatus.FAILED, NodeStatus.SKIPPED


def broad() -> Bench:
    """`a` fails; `b` runs, `c` is queued, `d` waits for `b`, and `f` has waiting children."""
    bench = Bench(
        a=task(retry=NO_RETRY),
        b=task(),
        c=task(),
        d=task("b"),
        f=fan_out([1, 2], max_parallel=1),
        end=end("a", "c", "d", "f"),
    ).start()
    bench.begin("a")
    bench.begin("b")
    return bench


def test_the_first_node_without_retries_left_fails_the_job_at_once():
    bench = broad()
    bench.fail("a", "no luck")
    assert (bench.status, bench.error) == (JobStatus.FAILED, "node a failed: no luck")
    assert bench.in_state(FAILED) == {"a", "b", "c", "f__0"}
    assert bench.in_state(SKIPPED) == {"d", "f__1", "end"}
    assert not bench.waiting and not bench.store.running
    assert bench.data("d", "node_skipped") == {"reason": "job_failed", "ended_by": "skipped"}
    assert bench.data(None, "job_failed") == {
        "ended_by": "failure",
        "failed_node": "a",
        "failed_nodes": ["a"],
        "duration_seconds": 0.0,
    }


def test_running_nodes_are_revoked_with_a_warning():
    bench = broad()
    bench.fail("a")
    [event] = [event for event in bench.store.events if (event.node_id, event.event_type) == ("b", "node_failed")]
    assert (event.event_status, event.error_message) == ("warning", "stopped because the job failed")
    assert event.event_data == {"will_retry": False, "ended_by": "revoked"}


def test_nothing_changes_after_the_end():
    bench = broad()
    bench.fail("a")
    rows = dict(bench.store.nodes)
    messages: list[Message] = [
        Load(),
        Expand("f"),
        Cancel(),
        TimerDue(TimerKind.ZOMBIE),
        TimerDue(TimerKind.RETRY, "c", 0),
        TimerDue(TimerKind.TIMEOUT, "b", 0),
        bench.completed("b"),
    ]
    changes = bench.send(*messages)
    assert [event.event_type for event in changes.events] == ["result_ignored"]
    assert (bench.status, bench.store.nodes) == (JobStatus.FAILED, rows)


def test_tasks_dispatched_in_the_change_set_that_ends_the_job_are_not_queued():
    bench = Bench(a=task(retry=NO_RETRY), b=task("a"), c=task(retry=NO_RETRY), end=end("b", "c")).start()
    fail = bench.completed("a"), Cancel()
    changes = bench.send(*fail)
    assert not changes.dispatches
    assert bench.of("b") is FAILED
    assert not bench.waiting


def test_a_running_job_can_be_cancelled():
    bench = broad()
    bench.cancel()
    assert bench.status is JobStatus.CANCELLED
    assert bench.data(None, "job_cancelled") == {"ended_by": "cancelled", "actor": "ann", "reason": "changed my mind"}
    assert bench.in_state(FAILED) == {"a", "b", "c", "f__0"}
    assert bench.in_state(SKIPPED) == {"d", "f__1", "end"}
    assert bench.data("d", "node_skipped") == {"reason": "job_cancelled", "ended_by": "skipped"}
    assert not bench.waiting and not bench.store.running


def test_a_pending_job_can_be_cancelled():
    bench = Bench(a=task(), end=end("a"))
    bench.cancel()
    assert (bench.status, bench.store.job.started_at) == (JobStatus.CANCELLED, None)
    assert bench.in_state(SKIPPED) == {"start", "a", "end"}


def test_a_job_can_be_cancelled_in_the_batch_that_starts_it():
    bench = Bench(a=task(), end=end("a"))
    bench.send(Load(), Cancel())
    assert bench.status is JobStatus.CANCELLED
    assert not bench.waiting


def test_cancelling_stops_an_expansion():
    bench = Bench({"items": [1, 2, 3]}, Rules(slice_size=1), f=fan_out("{{ inputs.items }}"), end=end("f"))
    bench.expands = False
    bench.start().cancel()
    bench.send(Expand("f"))
    assert set(bench.store.nodes) == {"start", "f", "f__0", "end"}
    assert bench.of("f") is FAILED


def test_cancelling_ends_a_back_off():
    bench = Bench(a=task(), end=end("a")).start()
    bench.fail("a", retry_after_seconds=60)
    bench.cancel()
    bench.wait(60)
    assert bench.of("a") is SKIPPED
    assert not bench.waiting


def test_a_job_whose_first_step_fails_was_running():
    """Only legal moves, whatever happens first."""
    route = choose("inputs.object.missing", is_1=("a",), default=("end",))
    bench = Bench({"object": {}}, route=route, a=task(), end=end()).start()
    assert [name for name in bench.events() if name.startswith("job")] == ["job started", "job failed"]
    assert bench.store.job.started_at == START


def test_long_errors_are_truncated():
    bench = Bench(a=task(retry=NO_RETRY), end=end("a")).start()
    bench.fail("a", "x" * 10_000)
    assert len(str(bench.error)) == MAX_ERROR_LENGTH
    assert len(str(bench.store.nodes["a"].error)) == MAX_ERROR_LENGTH
    assert all(len(event.error_message or "") <= MAX_ERROR_LENGTH for event in bench.store.events)


def test_a_retryable_failure_does_not_end_the_job():
    bench = Bench(a=task(retry=AT_ONCE), b=task(), end=end("a", "b")).start()
    bench.fail("a")
    assert bench.status is JobStatus.RUNNING
    assert set(bench.waiting) == {f"{JOB}_b_0", f"{JOB}_a_1"}


def test_a_job_with_a_failed_node_fails_and_does_not_complete():
    bench = Bench(a=task(), end=end("a")).start()
    for node_id, status in (("a", FAILED), ("end", SKIPPED)):
        bench.job.nodes[node_id].status = status
    bench.job.open = 0
    changes = decide(bench.job, [Load()], bench.now, bench.rules)
    assert changes.job.status is JobStatus.FAILED
