"""Nodes added by running tasks: created once, after their dependencies, and like any other node from then on."""

import pytest
from dynamic_nodes_bench import add, gate, job, node
from engine_bench import AT_ONCE, JOB, Bench, choose, end, fan_out, task

from dagmaster.engine.change_set import Rules
from dagmaster.engine.messages import ManualRetry
from dagmaster.model.added_nodes import AddedDependency, AddedGroup, AddedNode
from dagmaster.model.retry import RetryPolicy
from dagmaster.model.states import JobStatus, NodeStatus

PENDING, DISPATCHED, RUNNING = NodeStatus.PENDING, NodeStatus.DISPATCHED, NodeStatus.RUNNING
COMPLETED, FAILED, SKIPPED = NodeStatus.COMPLETED, NodeStatus.FAILED, NodeStatus.SKIPPED


def test_an_added_node_keeps_the_job_open_until_it_ends():
    bench = job()
    add(bench, node("a.1", params={"x": 1}))
    bench.complete("a")
    assert (bench.of("end"), bench.status) == (COMPLETED, JobStatus.RUNNING)
    assert bench.params("a.1") == {"x": 1}
    bench.complete("a.1", {"result": 7})
    assert bench.status is JobStatus.COMPLETED
    assert bench.data("a", "tasks_added") == {"added_by": "a", "count": 1, "node_ids": ["a.1"]}


def test_the_jobs_result_excludes_added_nodes():
    bench = job()
    add(bench, node("a.1"))
    bench.complete("a", {"x": 1})
    bench.complete("a.1", {"y": 1})
    assert bench.result.keys() == {"a", "_provenance"}
    assert bench.data(None, "job_completed")["result_keys"] == ["a"]


def test_an_added_node_waits_for_all_its_dependencies():
    bench = job()
    add(bench, node("a.1"), node("a.2"), node("a.3", "a", "a.1", "a.2"))
    bench.complete("a.1")
    bench.complete("a")
    assert bench.of("a.3") is PENDING
    bench.complete("a.2")
    assert bench.of("a.3") is DISPATCHED


def test_an_added_node_after_ended_ones_is_ready_at_once():
    bench = Bench(before=task(), a=task("before"), end=end("a")).start()
    bench.complete("before")
    add(bench, node("a.1", "start", "before"))
    assert bench.of("a.1") is DISPATCHED


def test_an_added_node_uses_the_queue_of_the_adding_task():
    bench = job()
    add(bench, node("a.1"), node("a.2", queue="heavy"))
    assert [bench.job.nodes[name].task_queue for name in ("a.1", "a.2")] == ["tasks", "heavy"]


def test_a_repeated_attempt_adds_the_same_nodes_once():
    bench = job(retry=AT_ONCE)
    add(bench, node("a.1"), node("a.2", "a.1"))
    bench.complete("a.1", {"result": 1})
    bench.fail("a")
    add(bench, node("a.1"), node("a.2", "a.1"), node("a.3", "a.2"))
    assert bench.data("a", "tasks_added")["node_ids"] == ["a.3"]
    assert bench.output("a.1") == {"result": 1}
    for name in ("a", "a.2", "a.3"):
        bench.complete(name)
    assert bench.status is JobStatus.COMPLETED


def test_existing_nodes_do_not_count_against_the_limit_again():
    bench = Bench(a=task(retry=AT_ONCE), end=end("a"), rules=Rules(max_fan_out=5)).start()
    add(bench, node("a.1"), node("a.2"))
    bench.fail("a")
    add(bench, node("a.1"), node("a.2"))
    assert bench.of("a") is RUNNING
    add(bench, node("a.3"))
    assert "a job may have 5 nodes" in (bench.error or "")


def test_a_duplicate_node_in_a_slice_is_harmless():
    bench = job()
    add(bench, node("a.1"), node("a.1", "start"))
    assert (bench.status, bench.of("a")) == (JobStatus.FAILED, FAILED)
    assert "a.1 is named twice" in (bench.error or "")


def test_a_node_keeps_its_first_task_id():
    bench = job(retry=AT_ONCE)
    add(bench, node("a.1"), node("a.2", "a.1", task=12))
    bench.fail("a")
    add(bench, node("a.1"), node("a.3"), node("a.2", "a.1", "a.3", task=99))
    bench.restart()
    assert bench.job.nodes["a.2"].snowflake == 12


def test_nodes_added_by_an_ended_attempt_are_ignored():
    bench = job(retry=AT_ONCE)
    late = bench.task_id("a")
    bench.fail("a")
    add(bench, node("a.1"), task_id=late)
    assert "a.1" not in bench.store.nodes
    bench.complete("a")
    assert bench.status is JobStatus.COMPLETED


def test_adding_nodes_proves_that_the_task_runs():
    bench = Bench(a=task(), end=end("a")).start()
    add(bench, node("a.1"))
    assert (bench.of("a"), bench.of("a.1")) == (RUNNING, DISPATCHED)


def test_gates_are_completed_by_the_engine():
    bench = job()
    members = [node(f"a.{n}", "a.in") for n in range(3)]
    add(bench, node("a.first"), gate("a.in", "a.first"), *members, gate("a.out", "a.0", "a.1", "a.2"))
    add(bench, node("a.last", "a.out"))
    bench.complete("a.first")
    assert bench.of("a.in") is COMPLETED
    for n in range(3):
        assert bench.of("a.last") is PENDING
        bench.complete(f"a.{n}")
    assert (bench.of("a.out"), bench.of("a.last")) == (COMPLETED, DISPATCHED)


def test_an_empty_gate_completes_at_once():
    bench = job()
    add(bench, gate("a.out"), node("a.1", "a.out"))
    assert bench.of("a.1") is DISPATCHED


def test_parameters_can_contain_results_of_other_nodes():
    bench = job()
    params = {"x": {"$result": "a.1"}, "deep": [{"y": {"$result": "a.2"}}], "plain": {"$result": "a.1", "more": 1}}
    add(bench, node("a.1"), node("a.2"), node("a.3", params=params))
    bench.complete("a.1", {"result": [1, 2], "other": 3})
    assert bench.of("a.3") is PENDING
    bench.complete("a.2", {"whole": True})
    assert bench.params("a.3") == {
        "x": [1, 2],
        "deep": [{"y": {"whole": True}}],
        "plain": {"$result": "a.1", "more": 1},
    }


def test_template_syntax_in_parameters_is_not_evaluated():
    bench = job()
    add(bench, node("a.1", params={"x": "{{ inputs.secret }}"}))
    assert bench.params("a.1") == {"x": "{{ inputs.secret }}"}


def test_a_new_owner_continues_added_nodes():
    bench = job()
    add(bench, node("a.1"), node("a.2", params={"x": {"$result": "a.1"}}), gate("a.3", "a.2"))
    bench.restart()
    bench.complete("a.1", {"result": 5})
    assert bench.params("a.2") == {"x": 5}
    bench.restart()
    bench.complete("a")
    bench.complete("a.2")
    assert (bench.of("a.3"), bench.status) == (COMPLETED, JobStatus.COMPLETED)


def test_an_added_node_after_an_untaken_branch_is_skipped():
    bench = Bench(
        {"x": 1}, c=choose("inputs.x", is_1=("a",), default=("b",)), a=task(), b=task(), end=end(any_of=("a", "b"))
    ).start()
    add(bench, node("a.1", "b"), node("a.2", "a.1"), node("a.3", "b", "start"))
    assert [bench.of(f"a.{n}") for n in (1, 2, 3)] == [SKIPPED, SKIPPED, DISPATCHED]


def test_added_nodes_can_depend_on_and_be_added_by_fan_out_children():
    bench = Bench({"items": [1, 2]}, f=fan_out("{{ inputs.items }}"), end=end("f")).start()
    add(bench, node("f__0.1", "f__1"), node("f__0.2", "f"), adder="f__0")
    bench.complete("f__1")
    assert [bench.of(f"f__0.{n}") for n in (1, 2)] == [DISPATCHED, PENDING]
    bench.restart()
    bench.complete("f__0")
    assert (bench.of("f__0.2"), bench.of("end")) == (DISPATCHED, COMPLETED)


def test_a_pending_node_can_get_more_dependencies():
    bench = job()
    add(bench, node("a.1"), node("a.2", "a.1"))
    add(bench, node("a.3"), node("a.2", "a.1", "a.3"))
    bench.complete("a.1")
    bench.restart()
    assert bench.of("a.2") is PENDING
    bench.complete("a.3")
    assert bench.of("a.2") is DISPATCHED


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        ([node("b.1")], "a cannot add a node with the id b.1"),
        ([node("end")], "a cannot add a node with the id end"),
        ([node("a.1", "a.9")], "a.1 waits for a.9, which is not a node of the job"),
        ([node("a.1", "a.1")], "a.1 waits for a.1"),
        ([node("a.1", params={"x": {"$result": "nobody"}})], "a.1 waits for nobody"),
        ([node("a.1"), node("a.1", "start")], "can no longer be made to wait"),
        ([node("a.1", "a"), node("a.2", "a.1"), node("a.1", "a.2")], "would wait for each other"),
    ],
)
def test_invalid_nodes_fail_the_attempt_permanently(nodes: list[AddedNode], reason: str):
    bench = job(retry=AT_ONCE)
    if len(nodes) > 1:
        add(bench, *nodes[:-1])
        nodes = nodes[-1:]
    add(bench, *nodes)
    assert bench.status is JobStatus.FAILED
    assert "the nodes that it added were refused" in (bench.error or "") and reason in (bench.error or "")
    assert bench.store.nodes["a"].attempt == 0


def test_a_cycle_within_one_slice_is_detected():
    bench = job()
    add(bench, node("a.1", "a"), node("a.2", "a"))
    add(bench, node("a.3", "a.1"), node("a.2", "a.3"), node("a.1", "a.2"))
    assert "would wait for each other" in (bench.error or "")


def test_retries_timeouts_and_fail_fast_apply_to_added_nodes():
    bench = job()
    add(bench, node("a.1", retry=AT_ONCE, timeout_seconds=10), node("a.2", "a.1"))
    bench.fail("a.1")
    assert bench.store.nodes["a.1"].attempt == 1
    bench.begin("a.1")
    bench.wait(20)
    assert bench.store.nodes["a.1"].attempt == 2
    bench.fail("a.1", permanent=True)
    assert bench.status is JobStatus.FAILED
    assert (bench.of("a"), bench.of("a.2")) == (FAILED, SKIPPED)


def test_added_nodes_get_the_operators_defaults_when_they_are_added():
    rules = Rules(default_timeout_seconds=7, default_retry=RetryPolicy(max_attempts=9))
    bench = Bench(rules=rules, a=task(), end=end("a")).start()
    bench.begin("a")
    add(bench, AddedNode("a.1", "work"), AddedNode("a.2", "work", timeout_seconds=3600, retry=RetryPolicy()))
    bench.rules = Rules()
    bench.restart()
    limits = [(node.spec.task.timeout_seconds, node.max_retries) for node in map(bench.job.nodes.get, ("a.1", "a.2"))]
    assert limits == [(7, 9), (3600, 3)]


def test_a_failed_job_is_reopened_with_its_added_nodes():
    bench = job()
    add(bench, node("a.1"), gate("a.2", "a.1"), node("a.3", "a.2", params={"x": {"$result": "a.1"}}), node("a.4"))
    bench.complete("a.1", {"result": 3})
    bench.fail("a.4")
    assert bench.status is JobStatus.FAILED
    bench.retry()
    assert (bench.of("a.2"), bench.of("a.3"), bench.of("a.4")) == (COMPLETED, DISPATCHED, DISPATCHED)
    for name in ("a", "a.3", "a.4"):
        bench.complete(name)
    assert bench.status is JobStatus.COMPLETED


def test_reopening_restores_dependencies_on_fan_out_children():
    bench = Bench({"items": [1, 2]}, f=fan_out("{{ inputs.items }}"), end=end("f")).start()
    add(bench, node("f__0.1", "f__1"), adder="f__0")
    bench.fail("f__0")
    bench.retry()
    bench.complete("f__1")
    assert bench.of("f__0.1") is DISPATCHED


def test_cancelling_cancels_added_nodes():
    bench = job()
    add(bench, node("a.1"), node("a.2", "a.1"))
    bench.cancel()
    assert (bench.of("a.1"), bench.of("a.2"), bench.waiting) == (FAILED, SKIPPED, [])


def test_a_paused_job_accepts_added_nodes_and_starts_none():
    bench = job()
    bench.pause()
    add(bench, node("a.1"))
    assert bench.of("a.1") is NodeStatus.READY
    bench.restart()
    bench.unpause()
    assert bench.of("a.1") is DISPATCHED


def test_a_manual_retry_ends_an_added_nodes_back_off():
    bench = job()
    add(bench, node("a.1", retry=AT_ONCE.model_copy(update={"initial_delay_seconds": 60})))
    bench.fail("a.1")
    bench.send(ManualRetry("a.1", "ann"))
    assert bench.of("a.1") is DISPATCHED


def test_groups_and_dependencies_are_stored_with_the_nodes():
    bench = job(retry=AT_ONCE)
    group, dependency = AddedGroup(70, "g"), AddedDependency(11, "task", 12, "task")
    add(bench, node("a.1", task=11), node("a.2", "a.1", task=12, group=70), groups=(group,), dependencies=(dependency,))
    assert (bench.changes.groups, bench.changes.dependencies) == ([group], [dependency])
    bench.fail("a")
    again = AddedDependency("a.1", "task", "a.3", "task")
    add(bench, node("a.1", task=21))
    add(bench, node("a.3", "a.1", task=23), dependencies=(again, AddedDependency("a", "task", "a.3", "task")))
    assert bench.changes.dependencies == [AddedDependency(11, "task", 23, "task")]


# From outside.


def test_nodes_can_be_added_from_outside():
    bench = job()
    add(bench, node("added.5", "a", queue="tasks"), adder=None, actor="ann")
    assert bench.data(None, "tasks_added") == {"added_by": "ann", "count": 1, "node_ids": ["added.5"]}
    bench.complete("a")
    assert (bench.of("added.5"), bench.status) == (DISPATCHED, JobStatus.RUNNING)
    bench.restart()
    bench.complete("added.5")
    assert bench.status is JobStatus.COMPLETED


def test_invalid_additions_from_outside_are_recorded_and_harmless():
    bench = job()
    add(bench, node("added.5", "nobody", queue="tasks"), adder=None)
    add(bench, node("added.6"), adder=None)
    assert bench.data(None, "job_warning")["warning"] == "the added nodes were refused: added.6 needs a queue"
    bench.complete("a")
    assert bench.status is JobStatus.COMPLETED


def test_nodes_can_be_added_to_a_paused_job_that_has_not_started():
    bench = Bench(a=task(), end=end("a"))
    bench.pause()
    add(bench, node("added.5", queue="tasks"), adder=None)
    bench.restart()
    assert bench.waiting == []
    bench.unpause()
    assert set(bench.waiting) == {f"{JOB}_a_0", f"{JOB}_added.5_0"}
    bench.complete("a")
    bench.complete("added.5")
    assert bench.status is JobStatus.COMPLETED


def test_the_cost_of_adding_does_not_grow_with_existing_nodes():
    bench = job()
    add(bench, *(node(f"a.{n}") for n in range(500)))
    add(bench, node("a.500"))
    assert (len(bench.changes.created), len(bench.changes.touched), len(bench.changes.events)) == (1, 0, 3)
