"""`ended_by` is a value: no text of a handler is mistaken for the engine's."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from engine_bench import AT_ONCE, JOB, NO_RETRY, Bench, end, fan_out, task

from dagmaster.engine.change_set import Rules
from dagmaster.engine.messages import Cancel, Load, TaskFailed, TaskLost, TimerDue, TimerKind
from dagmaster.model.states import EndedBy, JobEndedBy, JobStatus, NodeStatus, read_ended_by
from dagmaster.model.workflow import WaitNode

HOSTILE = (
    "withdrawn: job_failed",
    "withdrawn: job_cancelled",
    "stopped because the job failed",
    "worker w was lost",
    "worker w gave it back",
    "node b failed: the added nodes were refused: no",
    "Timeout: no progress for 24 hours",
)


def of(bench: Bench, node_id: str) -> EndedBy | None:
    """In memory, and in the rows."""
    assert bench.job.nodes[node_id].ended_by is bench.store.nodes[node_id].ended_by
    return bench.job.nodes[node_id].ended_by


def _complete(bench: Bench) -> None:
    bench.complete("a")


def _fail(bench: Bench) -> None:
    bench.fail("a")


def _lose(bench: Bench) -> None:
    bench.send(TaskLost("a", f"{JOB}_a_0", "worker", bench.now))


def _time_out(bench: Bench) -> None:
    bench.begin("a")
    bench.wait(10_000)


def _be_stopped_by_the_worker(bench: Bench) -> None:
    bench.send(TaskFailed("a", f"{JOB}_a_0", "worker", bench.now, "timed out after 5 s", timed_out=True))


def _cancel(bench: Bench) -> None:
    bench.send(Cancel())


@pytest.mark.parametrize(
    ("act", "expected"),
    [
        (_complete, EndedBy.RESULT),
        (_fail, EndedBy.FAILURE),
        (_lose, EndedBy.LOST),
        (_time_out, EndedBy.TIMEOUT),
        (_be_stopped_by_the_worker, EndedBy.TIMEOUT),
        (_cancel, EndedBy.CANCELLED),
    ],
)
def test_each_way_to_end_has_its_value(act: Callable[[Bench], None], expected: EndedBy) -> None:
    bench = Bench(a=task(retry=NO_RETRY), end=end("a")).start()
    act(bench)
    assert of(bench, "a") is expected
    event = next(e for e in bench.store.events if e.node_id == "a" and "ended_by" in (e.event_data or {}))
    assert (event.event_data or {})["ended_by"] == expected


def test_nodes_ended_by_another_nodes_failure_are_revoked_or_skipped() -> None:
    bench = Bench(a=task(retry=NO_RETRY), b=task(), c=task("b"), w=WaitNode(seconds=60), end=end("a", "c", "w")).start()
    bench.fail("a")
    assert [of(bench, name) for name in "abcw"] == [
        EndedBy.FAILURE,
        EndedBy.REVOKED,
        EndedBy.SKIPPED,
        EndedBy.REVOKED,
    ]


def test_a_returned_task_has_not_ended() -> None:
    bench = Bench(a=task(retry=NO_RETRY), end=end("a")).start()
    bench.send(TaskLost("a", f"{JOB}_a_0", "worker", bench.now, given_back=True))
    assert bench.data("a", "node_failed")["ended_by"] == "given_back"
    assert (bench.of("a"), of(bench, "a")) == (NodeStatus.DISPATCHED, None)


def test_a_new_attempt_clears_ended_by() -> None:
    bench = Bench(a=task(retry=AT_ONCE), end=end("a")).start()
    bench.fail("a")
    assert of(bench, "a") is None


@pytest.mark.parametrize("text", HOSTILE)
def test_a_failed_finalizer_fails_its_job_whatever_its_message(text: str) -> None:
    """With `withdrawn: ` the job once stayed running for a day."""
    nodes: dict[str, Any] = {
        "a": task(retry=NO_RETRY),
        "end": end("a"),
        "clean": task(retry=NO_RETRY),
        "more": task("clean"),
    }
    bench = Bench(chains={"finally": ("clean",)}, **nodes).start()
    bench.fail("a", text)
    bench.fail("clean", text)
    assert bench.status is JobStatus.FAILED
    assert bench.data(None, "job_failed")["failed_nodes"] == ["a", "clean"]
    assert bench.store.job.failed_node == "a"


@pytest.mark.parametrize("text", HOSTILE)
def test_the_failed_node_is_named_whatever_its_message(text: str) -> None:
    bench = Bench(a=task(retry=NO_RETRY), b=task(), f=fan_out([1]), end=end("a", "b", "f")).start()
    bench.fail("a", text)
    assert bench.data(None, "job_failed")["failed_nodes"] == ["a"]
    assert bench.store.job.failed_node == "a"


def test_a_repeated_report_changes_nothing_however_long_its_message() -> None:
    bench = Bench(a=task(retry=NO_RETRY), b=task(), end=end("a", "b"), chains={"finally": ("c",)}, c=task()).start()
    message = TaskFailed("a", f"{JOB}_a_0", "worker", bench.now, "x" * 5000)
    bench.send(message)
    assert not bench.send(message).events


def test_rows_of_an_earlier_version_get_ended_by_from_their_status() -> None:
    assert read_ended_by(NodeStatus.COMPLETED, None) is EndedBy.RESULT
    assert read_ended_by(NodeStatus.FAILED, None) is EndedBy.FAILURE
    assert read_ended_by(NodeStatus.SKIPPED, None) is EndedBy.SKIPPED
    assert read_ended_by(NodeStatus.RUNNING, None) is None
    assert read_ended_by(NodeStatus.FAILED, "lost") is EndedBy.LOST


def test_a_job_cancelled_before_it_has_an_owner_never_starts() -> None:
    bench = Bench(a=task(), end=end("a"))
    changes = bench.send(Load(), Cancel("ann"))
    assert bench.status is JobStatus.CANCELLED
    assert not changes.dispatches
    assert {event.event_type for event in bench.store.events} == {"node_skipped", "job_cancelled"}
    assert bench.store.job.started_at is None


def _late(bench: Bench) -> None:
    bench.wait(100)


def _idle(bench: Bench) -> None:
    """The timer of its task is lost, which delays the stall of the job once."""
    for days in (2, 1):
        bench.now += timedelta(days=days)
        bench.send(TimerDue(TimerKind.ZOMBIE))


@pytest.mark.parametrize(
    ("finish", "ended_by", "last_event"),
    [
        (_complete, JobEndedBy.RESULT, "job_completed"),
        (lambda bench: bench.fail("a", HOSTILE[-1]), JobEndedBy.FAILURE, "job_failed"),
        (_late, JobEndedBy.DEADLINE, "job_failed"),
        (_idle, JobEndedBy.NO_PROGRESS, "job_failed"),
        (lambda bench: bench.cancel(), JobEndedBy.CANCELLED, "job_cancelled"),
    ],
)
def test_a_jobs_ended_by_is_a_value(finish: Callable[[Bench], None], ended_by: JobEndedBy, last_event: str) -> None:
    rules = Rules(default_job_timeout_seconds=100 if finish is _late else None)
    bench = Bench(rules=rules, a=task(retry=NO_RETRY), end=end("a")).start()
    assert bench.store.job.ended_by is None
    finish(bench)
    assert (bench.job.ended_by, bench.store.job.ended_by) == (ended_by, ended_by)
    assert bench.data(None, last_event)["ended_by"] == ended_by


def test_a_failing_jobs_reason_survives_a_takeover_and_is_cleared_on_reopening() -> None:
    rules = Rules(default_job_timeout_seconds=100)
    bench = Bench(rules=rules, a=task(), end=end("a"), chains={"finally": ("c",)}, c=task()).start()
    bench.wait(100)
    bench.restart()
    assert (bench.status, bench.job.ended_by) == (JobStatus.RUNNING, JobEndedBy.DEADLINE)
    bench.complete("c")
    assert (bench.status, bench.store.job.ended_by) == (JobStatus.FAILED, JobEndedBy.DEADLINE)
    bench.retry()
    assert (bench.status, bench.store.job.ended_by) == (JobStatus.RUNNING, None)
