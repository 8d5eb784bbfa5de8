"""A paused job starts nothing, loses nothing, and continues where it stopped."""

from datetime import timedelta
from typing import Any

from engine_bench import AT_ONCE, JOB, NO_RETRY, START, Bench, choose, end, fan_out, task

from dagmaster.engine.change_set import Rules
from dagmaster.engine.messages import Pause, Resume, TimerDue, TimerKind
from dagmaster.model.retry import RetryPolicy
from dagmaster.model.states import JobStatus, NodeStatus

READY, DISPATCHED = NodeStatus.READY, NodeStatus.DISPATCHED
SLOWLY = RetryPolicy(max_attempts=3, initial_delay_seconds=10)
DAY = 24 * 3600.0


def chain(rules: Rules | None = None, **fields: Any) -> Bench:
    fields = {"retry": AT_ONCE} | fields
    return Bench(None, rules, a=task(**fields), b=task("a", **fields), end=end("b"))


def children(count: int, **fields: Any) -> Bench:
    return Bench({"items": list(range(count))}, f=fan_out("{{ inputs.items }}", **fields), end=end("f")).start()


def paused_tasks(bench: Bench) -> set[str]:
    return {row.node_id for row in bench.store.waiting.values() if row.is_paused}


def test_a_job_paused_before_it_starts_starts_when_resumed():
    bench = chain()
    bench.send(Pause("ann"))
    bench.restart()
    assert bench.status is JobStatus.PENDING
    assert not bench.waiting
    bench.unpause()
    assert (bench.status, bench.waiting) == (JobStatus.RUNNING, [f"{JOB}_a_0"])


def test_a_waiting_task_is_held_and_released():
    bench = chain().start()
    bench.pause()
    assert paused_tasks(bench) == {"a"}
    assert bench.store.claimable() == []
    bench.unpause()
    assert bench.store.claimable() == [f"{JOB}_a_0"]


def test_running_tasks_may_end_and_their_successors_stay_ready():
    bench = chain().start()
    bench.begin("a")
    bench.pause()
    bench.complete("a")
    assert (bench.of("b"), bench.waiting) == (READY, [])
    bench.unpause()
    assert bench.waiting == [f"{JOB}_b_0"]


def test_a_paused_job_does_not_end_before_it_is_resumed():
    bench = Bench(a=task(), end=end("a")).start()
    bench.begin("a")
    bench.pause()
    bench.complete("a")
    assert (bench.status, bench.of("end")) == (JobStatus.RUNNING, READY)
    bench.unpause()
    assert bench.status is JobStatus.COMPLETED


def test_a_conditional_does_not_decide_while_its_job_is_paused():
    nodes: dict[str, Any] = {
        "a": task(),
        "c": choose("inputs.n", "a", is_3=("x",), default=("y",)),
        "x": task(),
        "y": task(),
    }
    bench = Bench({"n": 3}, **nodes, end=end("x", "y")).start()
    bench.pause()
    bench.complete("a")
    assert bench.of("c") is READY
    bench.unpause()
    assert (bench.of("x"), bench.of("y")) == (DISPATCHED, NodeStatus.SKIPPED)


def test_a_task_dispatched_in_the_change_set_of_the_pause_is_held():
    bench = chain().start()
    bench.begin("a")
    bench.send(bench.completed("a"), Pause("ann"))
    assert paused_tasks(bench) == {"b"}


def test_pausing_twice_and_resuming_twice_change_nothing():
    bench = chain().start()
    bench.pause()
    assert not bench.send(Pause("eve")).events
    assert bench.store.job.paused_by == "ann"
    bench.unpause()
    assert not bench.unpause().events
    assert bench.events("job") == ["started", "paused", "resumed"]
    assert bench.data(None, "job_resumed") == {"actor": "bob", "paused_seconds": 0.0}


def test_max_parallel_holds_after_a_pause():
    bench = children(5, max_parallel=2)
    bench.begin("f__0")
    bench.pause()
    bench.complete("f__0")
    assert len(bench.waiting) == 1
    bench.unpause()
    assert len(bench.waiting) == 2
    for index in range(1, 5):
        bench.complete(f"f__{index}")
    assert bench.status is JobStatus.COMPLETED


def test_a_back_off_that_outlasts_a_pause_takes_one_slot_not_two():
    """A former bug: a second timer made the child wait twice, and its second slot was wasted."""
    bench = children(3, max_parallel=1, child={"retry": SLOWLY})
    bench.fail("f__0")
    bench.pause()
    bench.unpause()
    bench.wait(10)
    assert list(bench.job.fans["f"].waiting) == ["f__2", "f__0"]
    for node_id in ("f__1", "f__2", "f__0"):
        bench.complete(node_id)
    assert bench.status is JobStatus.COMPLETED


def test_a_back_off_that_ends_with_the_pause_takes_one_slot():
    bench = children(3, max_parallel=1, child={"retry": SLOWLY})
    bench.fail("f__0")
    bench.pause()
    bench.now += timedelta(seconds=10)
    bench.send(Resume("bob"), TimerDue(TimerKind.RETRY, "f__0", 1))
    assert sorted(bench.job.fans["f"].waiting) == ["f__0", "f__2"]


def test_a_back_off_that_ends_during_a_pause_is_kept():
    bench = chain(retry=SLOWLY).start()
    bench.fail("a")
    bench.pause()
    bench.wait(60)
    assert bench.of("a") is READY
    bench.unpause()
    assert bench.waiting == [f"{JOB}_a_1"]


def test_the_queue_timeout_starts_over_after_a_pause():
    bench = chain(Rules(dispatch_timeout_seconds=60)).start()
    bench.wait(50)
    bench.pause()
    bench.wait(1000)
    assert bench.waiting == [f"{JOB}_a_0"]
    bench.unpause()
    bench.wait(59)
    assert bench.waiting == [f"{JOB}_a_0"]
    bench.wait(1)
    assert bench.waiting == [f"{JOB}_a_1"]


def test_a_running_task_times_out_even_if_its_job_is_paused():
    bench = chain(timeout_seconds=10).start()
    bench.begin("a")
    bench.pause()
    bench.wait(15)
    assert (bench.of("a"), bench.waiting) == (READY, [])
    bench.unpause()
    assert bench.waiting == [f"{JOB}_a_1"]


def test_a_paused_job_is_not_stalled():
    bench = chain().start()
    bench.pause()
    bench.wait(3 * DAY)
    assert bench.status is JobStatus.RUNNING
    bench.unpause()
    bench.wait(100)
    assert bench.waiting == [f"{JOB}_a_0"]


def test_a_job_whose_queue_is_full_is_not_stalled():
    bench = chain().close_queue().start()
    bench.wait(3 * DAY)
    assert (bench.status, bench.of("a")) == (JobStatus.RUNNING, READY)
    bench.open_queue()
    assert bench.waiting == [f"{JOB}_a_0"]


def test_a_new_owner_keeps_the_job_paused():
    bench = children(4, max_parallel=2)
    bench.pause()
    bench.complete("f__0")
    bench.restart()
    assert (bench.job.paused_by, bench.job.paused_at) == ("ann", START)
    assert len(bench.waiting) == 1
    bench.send(Resume("bob"))
    assert len(bench.waiting) == 2


def test_children_are_created_but_not_dispatched_while_paused():
    bench = Bench({"n": [1] * 5}, Rules(slice_size=2), f=fan_out("{{ inputs.n }}"), end=end("f"))
    bench.expands = False
    follow_ups = bench.start().changes.follow_ups
    bench.pause()
    bench.expands = True
    bench.send(*follow_ups)
    assert len(bench.in_state(READY)) == 3
    assert paused_tasks(bench) == {"f__0", "f__1"}
    bench.unpause()
    assert len(bench.in_state(DISPATCHED)) == 5


def test_a_task_lost_during_a_pause_is_retried_after_it():
    bench = chain().start()
    bench.begin("a")
    bench.pause()
    bench.lose("a")
    assert (bench.of("a"), bench.waiting) == (READY, [])
    bench.unpause()
    assert bench.waiting == [f"{JOB}_a_1"]


def test_a_paused_job_can_be_cancelled_and_can_fail():
    for finish, status in ((Bench.cancel, JobStatus.CANCELLED), (lambda b: b.fail("a"), JobStatus.FAILED)):
        bench = chain(retry=NO_RETRY).start()
        bench.begin("a")
        bench.pause()
        finish(bench)
        assert (bench.status, bench.waiting) == (status, [])


def test_a_full_queue_holds_back_only_its_own_tasks():
    nodes: dict[str, Any] = {"a": task(), "b": task("a"), "other": task().model_copy(update={"queue": "other"})}
    bench = Bench(**nodes, end=end("b", "other")).close_queue().start()
    assert bench.waiting == [f"{JOB}_other_0"]
    bench.open_queue()
    assert bench.waiting == [f"{JOB}_other_0", f"{JOB}_a_0"]


def test_a_task_held_by_a_full_queue_stays_held_after_a_pause():
    bench = chain().close_queue().start()
    bench.pause()
    bench.unpause()
    assert list(bench.job.backlog["tasks"]) == ["a"]
    bench.open_queue()
    assert bench.waiting == [f"{JOB}_a_0"]
