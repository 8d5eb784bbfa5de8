"""A failed job continues where it stopped: completed nodes are kept, failed ones retried."""

from datetime import timedelta
from typing import Any

import pytest
from dynamic_nodes_bench import add, node
from engine_bench import AT_ONCE, JOB, NO_RETRY, Bench, choose, end, fan_in, fan_out, task

from dagmaster.engine.change_set import Rules
from dagmaster.engine.messages import ManualRetry
from dagmaster.model.retry import RetryPolicy
from dagmaster.model.states import JobStatus, NodeStatus

READY, DISPATCHED, SKIPPED = NodeStatus.READY, NodeStatus.DISPATCHED, NodeStatus.SKIPPED
COMPLETED, PENDING = NodeStatus.COMPLETED, NodeStatus.PENDING
SLOWLY = RetryPolicy(max_attempts=3, initial_delay_seconds=100)


def chain(**fields: Any) -> Bench:
    fields = {"retry": NO_RETRY} | fields
    return Bench(a=task(**fields), b=task("a", **fields), c=task("b", **fields), end=end("c")).start()


def failed_chain() -> Bench:
    bench = chain()
    bench.complete("a")
    bench.fail("b")
    assert bench.status is JobStatus.FAILED
    return bench


def test_completed_nodes_are_kept_and_failed_ones_retried():
    bench = failed_chain()
    bench.retry()
    assert (bench.status, bench.error) == (JobStatus.RUNNING, None)
    assert bench.waiting == [f"{JOB}_b_1"]
    assert (bench.of("a"), bench.of("c")) == (COMPLETED, PENDING)
    bench.complete("b")
    bench.complete("c")
    assert bench.status is JobStatus.COMPLETED
    assert bench.events("a") == ["ready", "dispatched", "started", "completed"]


@pytest.mark.parametrize("node_id", [None, "b"])
def test_the_timeline_records_who_requested_the_retry(node_id):
    bench = failed_chain()
    bench.retry(node_id)
    expected = {"actor": "ann", "wanted": node_id, "failed_nodes": ["b"]}
    assert {**expected, **bench.data(None, "job_reopened")} == expected
    assert bench.events("c") == ["skipped", "reopened"]


def test_a_retried_node_has_all_its_retries_again_and_may_fail_again():
    bench = chain(retry=AT_ONCE)
    for _ in range(4):
        bench.fail("a")
    assert bench.status is JobStatus.FAILED
    bench.retry()
    row = bench.store.nodes["a"]
    assert (row.attempt, row.max_retries) == (4, 7)
    for _ in range(4):
        bench.fail("a")
    assert bench.status is JobStatus.FAILED
    bench.retry()
    assert bench.waiting == [f"{JOB}_a_8"]
    for node_id in ("a", "b", "c"):
        bench.complete(node_id)
    assert bench.status is JobStatus.COMPLETED


def test_the_back_off_starts_over_with_the_retries():
    bench = chain(retry=RetryPolicy(max_attempts=2, initial_delay_seconds=10))
    for delay in (10, 20, 0):
        bench.fail("a")
        bench.wait(delay)
    assert bench.status is JobStatus.FAILED
    bench.retry()
    bench.fail("a")
    assert bench.store.nodes["a"].not_before == bench.now + timedelta(seconds=10)


def test_a_permanent_failure_can_be_retried_manually():
    bench = chain(retry=AT_ONCE)
    bench.fail("a", permanent=True)
    bench.retry("a")
    assert bench.waiting == [f"{JOB}_a_1"]


def test_revoked_siblings_are_retried():
    nodes: dict[str, Any] = {name: task(retry=NO_RETRY) for name in ("a", "b", "c")}
    bench = Bench(**nodes, end=end("a", "b", "c")).start()
    bench.begin("b")
    bench.fail("a")
    assert bench.in_state(NodeStatus.FAILED) == {"a", "b", "c"}
    bench.retry()
    assert bench.waiting == [f"{JOB}_{name}_1" for name in ("a", "b", "c")]


def test_a_result_of_a_revoked_attempt_changes_nothing():
    bench = Bench(a=task(retry=NO_RETRY), b=task(retry=NO_RETRY), end=end("a", "b")).start()
    bench.begin("b")
    bench.fail("a")
    bench.retry()
    bench.complete("b", {"late": True}, task_id=f"{JOB}_b_0")
    assert bench.of("b") is DISPATCHED
    assert bench.events("b")[-1] == "ignored"
    bench.complete("b", {"late": False})
    assert bench.output("b") == {"late": False}


def test_a_result_between_the_failure_and_the_retry_changes_nothing():
    bench = Bench(a=task(retry=NO_RETRY), b=task(retry=NO_RETRY), end=end("a", "b")).start()
    bench.begin("b")
    late = bench.completed("b", {"late": True})
    bench.fail("a")
    bench.store.reopen("owner", ManualRetry())
    bench.job = bench.store.load()
    bench.send(late, ManualRetry())
    assert (bench.of("b"), bench.task_id("b")) == (DISPATCHED, f"{JOB}_b_1")


def test_an_untaken_branch_stays_skipped():
    nodes: dict[str, Any] = {
        "c": choose("inputs.n", is_3=("x",), default=("y",)),
        "x": task(retry=NO_RETRY),
        "y": task(retry=NO_RETRY),
        "after_y": task("y"),
        "join": task("x", "after_y"),
    }
    bench = Bench({"n": 3}, **nodes, end=end("join")).start()
    bench.fail("x")
    bench.retry()
    assert (bench.of("y"), bench.of("after_y"), bench.of("join")) == (SKIPPED, SKIPPED, PENDING)
    assert bench.events("y") == ["skipped"]
    bench.complete("x")
    bench.complete("join")
    assert bench.status is JobStatus.COMPLETED


def test_an_undecided_branch_is_reopened():
    nodes: dict[str, Any] = {"a": task(retry=NO_RETRY), "c": choose("inputs.n", "a", is_3=("x",), default=("y",))}
    bench = Bench({"n": 3}, **nodes, x=task(), y=task(), end=end("x", "y")).start()
    bench.fail("a")
    bench.retry()
    assert bench.in_state(PENDING) == {"c", "x", "y", "end"}
    bench.complete("a")
    assert (bench.of("x"), bench.of("y")) == (DISPATCHED, SKIPPED)


def test_any_of_continues_with_its_completed_member():
    nodes: dict[str, Any] = {name: task(retry=NO_RETRY) for name in ("a", "b", "x")}
    bench = Bench(**nodes, c=task(any_of=("a", "b")), end=end("c", "x")).start()
    bench.complete("a")
    assert bench.of("c") is DISPATCHED
    bench.fail("x")
    bench.retry()
    assert bench.in_state(DISPATCHED) == {"b", "c", "x"}
    for node_id in ("c", "x"):
        bench.complete(node_id)
    assert bench.of("end") is COMPLETED


def test_any_of_waits_again_if_no_member_had_completed():
    bench = Bench(a=task(retry=NO_RETRY), b=task(retry=NO_RETRY), c=task(any_of=("a", "b")), end=end("c")).start()
    bench.fail("a")
    bench.retry()
    assert bench.of("c") is PENDING
    bench.complete("b")
    assert bench.of("c") is DISPATCHED


def test_a_fan_out_keeps_its_completed_children():
    bench = Bench({"n": [1, 2, 3, 4]}, f=fan_out("{{ inputs.n }}", max_parallel=2), g=fan_in("f"), end=end("g")).start()
    bench.complete("f__0", 10)
    bench.fail("f__1")
    assert (bench.of("f__2"), bench.of("f__3")) == (NodeStatus.FAILED, SKIPPED)
    bench.retry()
    assert len(bench.waiting) == 2
    for index in (1, 2, 3):
        bench.complete(f"f__{index}", index)
    assert bench.output("g")["results"] == [10, 1, 2, 3]
    assert bench.events("f__0").count("completed") == 1


def test_a_fan_out_that_failed_during_its_expansion_continues_it():
    bench = Bench({"n": list(range(7))}, Rules(slice_size=3), f=fan_out("{{ inputs.n }}"), g=fan_in("f"), end=end("g"))
    bench.expands = False
    bench.start()
    bench.fail("f__1")
    assert bench.of("f") is NodeStatus.FAILED
    bench.expands = True
    bench.retry()
    assert bench.of("f") is COMPLETED
    assert bench.in_state(DISPATCHED) == {f"f__{index}" for index in range(7)}
    for index in range(7):
        bench.complete(f"f__{index}", index)
    assert bench.output("g")["results"] == list(range(7))


def test_a_fan_out_with_an_invalid_list_evaluates_it_again():
    bench = Bench({"n": {"no": "list"}}, f=fan_out("{{ inputs.n }}"), end=end("f")).start()
    assert bench.status is JobStatus.FAILED
    bench.retry()
    assert bench.status is JobStatus.FAILED
    assert bench.events("job") == ["started", "failed", "reopened", "failed"]
    assert bench.store.nodes["f"].attempt == 1


def test_nodes_in_back_off_when_the_job_failed_are_retried_at_once():
    """A former bug: it kept its due time, but the timer was gone with the former owner."""
    bench = Bench(a=task(retry=SLOWLY), b=task(retry=NO_RETRY), end=end("a", "b")).start()
    bench.fail("a")
    bench.fail("b")
    assert bench.of("a") is SKIPPED
    bench.retry()
    assert set(bench.waiting) == {f"{JOB}_a_1", f"{JOB}_b_1"}


def test_a_manual_retry_ends_a_back_off():
    bench = chain(retry=SLOWLY)
    bench.fail("a")
    bench.retry("a")
    assert bench.waiting == [f"{JOB}_a_1"]
    assert bench.data("a", "node_retrying") == {"attempt": 1, "actor": "ann", "at_once": True}
    bench.wait(100)
    assert bench.waiting == [f"{JOB}_a_1"]


def test_an_ended_back_off_takes_one_slot_not_two():
    """A former bug: the timer of the back-off made the child wait for its slot a second time."""
    bench = Bench(
        {"n": [1, 2, 3]}, f=fan_out("{{ inputs.n }}", max_parallel=1, child={"retry": SLOWLY}), end=end("f")
    ).start()
    bench.fail("f__0")
    bench.retry("f__0")
    bench.wait(100)
    bench.retry("f__0")
    assert list(bench.job.fans["f"].waiting) == ["f__2", "f__0"]
    for node_id in ("f__1", "f__2", "f__0"):
        bench.complete(node_id)
    assert bench.status is JobStatus.COMPLETED


def test_a_job_that_failed_while_paused_is_paused_when_reopened():
    bench = chain()
    bench.begin("a")
    bench.pause()
    bench.fail("a")
    bench.retry()
    assert (bench.status, bench.of("a"), bench.waiting) == (JobStatus.RUNNING, READY, [])
    bench.unpause()
    assert bench.waiting == [f"{JOB}_a_1"]


def test_a_reopened_job_that_stalls_fails_in_the_end():
    bench = chain(timeout_seconds=10)
    bench.fail("a")
    bench.retry()
    bench.wait(1800)
    assert bench.status is JobStatus.FAILED


def test_a_new_owner_continues_a_reopened_job():
    bench = failed_chain()
    bench.retry()
    bench.restart()
    bench.complete("b")
    bench.complete("c")
    assert bench.status is JobStatus.COMPLETED


def test_only_a_failed_job_can_be_reopened():
    for finish in (Bench.cancel, lambda bench: bench.complete("a")):
        bench = Bench(a=task(), end=end("a")).start()
        finish(bench)
        status = bench.status
        changes = bench.send(ManualRetry())
        assert (bench.status, changes.events) == (status, [])


# Limited to some nodes.


def failed_tiles() -> Bench:
    """Of five tiles the first is done, the second failed, the next two ran, and the last had not started."""
    tiles = fan_out("{{ inputs.n }}", max_parallel=4, child={"retry": NO_RETRY})
    bench = Bench({"n": [1, 2, 3, 4, 5]}, tile=tiles, merge=fan_in("tile"), end=end("merge")).start()
    bench.complete("tile__0", 1)
    bench.close_queue()
    bench.begin("tile__2")
    bench.fail("tile__1")
    bench.open_queue()
    assert bench.in_state(NodeStatus.FAILED) == {"tile__1", "tile__2", "tile__3", "tile__4"}
    return bench


def test_only_the_selected_nodes_are_retried_and_the_job_fails_for_the_others():
    bench = failed_tiles()
    bench.retry(only=frozenset({"tile__2", "tile__4"}))
    assert bench.waiting == [f"{JOB}_tile__2_1", f"{JOB}_tile__4_1"]
    assert bench.data(None, "job_reopened")["only"] == ["tile__2", "tile__4"]
    bench.restart()  # The rest can be seen in the rows.
    for node_id in ("tile__2", "tile__4"):
        bench.complete(node_id, 3)
    assert (bench.status, bench.error) == (JobStatus.FAILED, "node tile__1 failed: no luck")
    assert bench.in_state(NodeStatus.FAILED) == {"tile__1", "tile__3"}
    assert (bench.of("merge"), bench.of("end")) == (SKIPPED, SKIPPED)
    bench.retry()
    for node_id in ("tile__1", "tile__3"):
        bench.complete(node_id, 2)
    assert bench.status is JobStatus.COMPLETED
    assert bench.output("merge")["results"] == [1, 2, 3, 2, 3]


def test_a_job_does_not_complete_while_revoked_nodes_remain():
    bench = failed_tiles()
    bench.retry(only=frozenset({"tile__1"}))
    bench.complete("tile__1", 2)
    assert (bench.status, bench.error) == (JobStatus.FAILED, "node tile__2 was not retried")


def test_successors_of_selected_nodes_run_and_those_of_others_do_not():
    nodes: dict[str, Any] = {name: task(retry=NO_RETRY) for name in ("a", "b")}
    bench = Bench(**nodes, after_a=task("a"), after_b=task("b"), both=task("a", "b"), end=end("both")).start()
    bench.begin("b")
    bench.fail("a")
    bench.retry(only=frozenset({"b"}))
    bench.complete("b")
    assert bench.waiting == [f"{JOB}_after_b_0"]
    bench.complete("after_b")
    assert (bench.status, bench.error) == (JobStatus.FAILED, "node a failed: no luck")
    assert bench.in_state(SKIPPED) == {"after_a", "both", "end"}


def test_on_failure_runs_for_the_remaining_failures():
    nodes: dict[str, Any] = {name: task(retry=NO_RETRY) for name in ("a", "b", "mourn")}
    bench = Bench(**nodes, end=end("a", "b"), chains={"on_failure": ("mourn",)}).start()
    bench.begin("b")
    bench.fail("a")
    bench.complete("mourn")
    bench.retry(only=frozenset({"a"}))
    bench.complete("a")
    assert (bench.status, bench.of("mourn")) == (JobStatus.RUNNING, DISPATCHED)
    bench.complete("mourn")
    assert (bench.status, bench.error) == (JobStatus.FAILED, "node b was not retried")


def test_in_a_running_job_only_back_offs_of_the_selected_nodes_end():
    bench = Bench(a=task(retry=SLOWLY), b=task(retry=SLOWLY), end=end("a", "b")).start()
    for node_id in ("a", "b"):
        bench.fail(node_id)
    bench.retry(only=frozenset({"b"}))
    assert bench.waiting == [f"{JOB}_b_1"]


def test_a_retried_task_cannot_add_a_node_that_waits_for_a_failed_node_outside_the_selection():
    nodes: dict[str, Any] = {name: task(retry=NO_RETRY) for name in ("a", "b")}
    bench = Bench(**nodes, end=end("a", "b")).start()
    bench.begin("b")
    bench.fail("a")
    bench.retry(only=frozenset({"b"}))
    bench.begin("b")
    add(bench, node("b.after_a", "a"), adder="b")
    assert bench.status is JobStatus.FAILED
    assert "b.after_a waits for a, which has failed and is not being retried" in str(bench.store.nodes["b"].error)
