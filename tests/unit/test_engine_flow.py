"""Edges decide which nodes become ready or skipped, and when the job is done."""

from datetime import timedelta
from typing import Any

import pytest
from engine_bench import JOB, START, Bench, choose, end, fan_out, task

from dagmaster.model.graph import NodeType
from dagmaster.model.states import EventStatus, JobStatus, NodeStatus
from dagmaster.model.workflow import Branch, ConditionalNode

COMPLETED, SKIPPED = NodeStatus.COMPLETED, NodeStatus.SKIPPED


def test_the_echo_workflow_has_exactly_these_events():
    bench = Bench(
        {"message": "hello"}, echo_handler=task(params={"m": "{{ inputs.message }}"}), end=end("echo_handler")
    )
    bench.start()
    assert bench.events() == [
        "start ready",
        "job started",
        "start dispatched",
        "start started",
        "start completed",
        "echo_handler ready",
        "echo_handler dispatched",
    ]
    assert bench.waiting == [f"{JOB}_echo_handler_0"]
    assert (bench.status, bench.of("end")) == (JobStatus.RUNNING, NodeStatus.PENDING)
    assert bench.data(None, "job_started") == {"first_node": "start"}

    bench.begin("echo_handler")
    bench.now += timedelta(seconds=2)
    bench.complete("echo_handler", {"echoed_params": bench.params("echo_handler")})
    assert bench.events()[7:] == [
        "echo_handler started",
        "echo_handler completed",
        "end ready",
        "end dispatched",
        "end started",
        "end completed",
        "job completed",
    ]
    assert bench.status is JobStatus.COMPLETED
    assert bench.result["echo_handler"]["echoed_params"] == {"m": "hello"}
    assert not bench.waiting and not bench.store.running


def test_the_result_contains_its_provenance():
    bench = Bench(a=task(), end=end("a")).start()
    bench.complete("a", {"x": 1})
    assert bench.result == {
        "a": {"x": 1},
        "_provenance": {
            "workflow_id": "bench",
            "workflow_version": 7,
            "job_id": str(JOB),
            "completed_at": START.isoformat(),
        },
    }
    assert bench.data(None, "job_completed") == {
        "ended_by": "result",
        "duration_seconds": 0.0,
        "node_count": 3,
        "result_keys": ["a"],
    }


def test_every_node_event_has_its_data():
    bench = Bench(a=task(), end=end("a")).start()
    bench.begin("a")
    bench.complete("a", {"x": 1, "y": 2})
    assert bench.data("a", "node_ready") == {"dependencies": ["start"]}
    assert bench.data("a", "node_dispatched") == {"queue": "tasks", "handler": "work"}
    assert bench.data("a", "node_started") == {"worker_id": "worker"}
    assert bench.data("a", "node_completed") == {"output_keys": ["x", "y"], "ended_by": "result"}
    [event] = [e for e in bench.store.events if (e.node_id, e.event_type) == ("a", "node_completed")]
    assert (event.task_id, event.duration_ms, event.event_status) == (f"{JOB}_a_0", 5, EventStatus.SUCCESS)


def test_a_chain_runs_in_order():
    bench = Bench(a=task(), b=task("a"), c=task("b"), end=end("c")).start()
    for name in "abc":
        assert bench.waiting == [f"{JOB}_{name}_0"]
        bench.complete(name)
    assert bench.status is JobStatus.COMPLETED


def test_a_join_waits_for_all():
    bench = Bench(a=task(), b=task(), c=task("a", "b"), end=end("c")).start()
    bench.complete("b")
    assert bench.of("c") is NodeStatus.PENDING
    bench.complete("a")
    assert bench.of("c") is NodeStatus.DISPATCHED


def test_the_end_waits_for_every_branch():
    bench = Bench(a=task(), b=task(), end=end("a", "b")).start()
    bench.complete("a")
    assert (bench.of("end"), bench.status) == (NodeStatus.PENDING, JobStatus.RUNNING)


def test_the_job_does_not_complete_while_another_branch_runs():
    bench = Bench(a=task(), b=task(), end=end("a")).start()
    bench.complete("a")
    assert (bench.of("end"), bench.status) == (COMPLETED, JobStatus.RUNNING)
    bench.complete("b")
    assert bench.status is JobStatus.COMPLETED


# Conditionals


@pytest.mark.parametrize(("value", "taken"), [(1, "a"), (2, "b"), (3, "c")])
def test_a_conditional_takes_the_first_matching_branch(value: int, taken: str):
    bench = Bench(
        {"n": value},
        route=choose("inputs.n", is_1=("a",), is_2=("b",), default=("c",)),
        a=task(),
        b=task(),
        c=task(),
        end=end("a", "b", "c"),
    ).start()
    assert bench.in_state(SKIPPED) == {"a", "b", "c"} - {taken}
    assert bench.waiting == [f"{JOB}_{taken}_0"]
    assert bench.output("route")["taken"] == [taken]
    bench.complete(taken)
    assert bench.status is JobStatus.COMPLETED


def test_a_conditional_records_its_decision():
    bench = Bench(
        {"n": 2},
        route=choose("inputs.n", is_1=("a",), is_2=("b",), default=("c",)),
        a=task(),
        b=task(),
        c=task(),
        end=end("a", "b", "c"),
    )
    bench.start()
    assert bench.output("route") == {
        "condition_result": True,
        "taken": ["b"],
        "taken_branch": "is_2",
        "skipped_branches": ["is_1", "default"],
    }
    assert bench.data("a", "node_skipped") == {"reason": "conditional_branch_not_taken", "ended_by": "skipped"}


def test_a_conditional_can_use_an_earlier_output():
    route = choose("nodes.a.output.n", "a", is_1=("b",), default=("c",))
    bench = Bench(a=task(), route=route, b=task(), c=task(), end=end("b", "c")).start()
    bench.complete("a", {"n": 1})
    assert (bench.of("b"), bench.of("c")) == (NodeStatus.DISPATCHED, SKIPPED)


def test_deciding_and_skipping_happen_in_one_change_set():
    route = choose("nodes.a.output.n", "a", is_1=("b",), default=("c",))
    bench = Bench(a=task(), route=route, b=task(), c=task("b"), d=task("c"), end=end("d")).start()
    changes = bench.complete("a", {"n": 0})
    assert {event.event_type for event in changes.events if event.node_id == "route"} >= {"node_completed"}
    assert "b" in changes.touched


def test_an_optional_step_is_skipped_without_its_successors():
    """The branch skips `extra` and leads to `last`."""
    nodes: dict[str, Any] = {
        "route": choose("inputs.n", is_1=("extra",), default=("last",)),
        "extra": task(next=("last",)),
        "last": task(),
        "end": end("last"),
    }
    short, long = Bench({"n": 0}, **nodes).start(), Bench({"n": 1}, **nodes).start()
    assert (short.of("extra"), short.of("last")) == (SKIPPED, NodeStatus.DISPATCHED)
    assert (long.of("extra"), long.of("last")) == (NodeStatus.DISPATCHED, NodeStatus.PENDING)
    long.complete("extra")
    assert long.of("last") is NodeStatus.DISPATCHED


def test_a_skipped_branch_skips_its_descendants():
    bench = Bench(
        {"n": 0},
        route=choose("inputs.n", is_1=("a",), default=("z",)),
        a=task(next=("inner",)),
        inner=choose("inputs.n", is_0=("b",), default=("c",)),
        b=task(),
        c=fan_out([1, 2]),
        d=task("b", "c"),
        z=task(),
        end=end("d", "z"),
    ).start()
    assert bench.in_state(SKIPPED) == {"a", "inner", "b", "c", "d"}
    bench.complete("z")
    assert bench.status is JobStatus.COMPLETED
    assert set(bench.result) == {"route", "z", "_provenance"}


def test_a_branch_may_have_no_target():
    bench = Bench({"n": 0}, route=choose("inputs.n", is_1=("a",), default=()), a=task(), end=end("a")).start()
    assert bench.in_state(SKIPPED) == {"a", "end"}
    assert bench.status is JobStatus.COMPLETED


def test_two_branches_may_lead_to_the_same_node():
    route = choose("inputs.n", is_1=("a",), is_2=("a",), default=("b",))
    bench = Bench({"n": 2}, route=route, a=task(), b=task(), end=end("a", "b")).start()
    assert (bench.of("a"), bench.of("b")) == (NodeStatus.DISPATCHED, SKIPPED)


def test_a_node_after_the_conditional_itself_runs_whichever_branch_is_taken():
    route = choose("inputs.n", is_1=("a",), default=("b",))
    bench = Bench({"n": 1}, route=route, a=task(), b=task(), always=task("route"), end=end("a", "b", "always")).start()
    assert bench.of("always") is NodeStatus.DISPATCHED


def test_incomparable_values_cause_a_warning_and_do_not_match():
    branches = (Branch(name="large", when="> 3", next=("a",)), Branch(name="other", next=("b",)))
    route = ConditionalNode(subject="inputs.n", branches=branches)
    bench = Bench({"n": "text"}, route=route, a=task(), b=task(), end=end("a", "b")).start()
    assert bench.of("b") is NodeStatus.DISPATCHED
    assert "route warning" in bench.events()


# any_of


def test_any_of_runs_once_after_the_first_completion():
    """The other branch continues."""
    bench = Bench(a=task(), b=task(), c=task(any_of=("a", "b")), end=end("b", "c")).start()
    bench.complete("b")
    assert bench.waiting == [f"{JOB}_a_0", f"{JOB}_c_0"]
    bench.complete("c")
    bench.complete("a")
    assert bench.events("c").count("dispatched") == 1
    assert bench.status is JobStatus.COMPLETED


def test_a_skipped_member_alone_does_not_satisfy_any_of():
    route = choose("inputs.n", is_1=("a",), default=("z",))
    bench = Bench({"n": 0}, route=route, a=task(), z=task(), b=task(), c=task(any_of=("a", "b")), end=end("z", "c"))
    bench.start()
    assert (bench.of("a"), bench.of("c")) == (SKIPPED, NodeStatus.PENDING)
    bench.complete("b")
    assert bench.of("c") is NodeStatus.DISPATCHED


def test_any_of_is_skipped_when_every_member_is():
    route = choose("inputs.n", is_1=("a", "b"), default=("z",))
    bench = Bench({"n": 0}, route=route, a=task(), b=task(), z=task(), c=task(any_of=("a", "b")), end=end("z", "c"))
    bench.start()
    assert bench.in_state(SKIPPED) == {"a", "b", "c"}


def test_any_of_is_skipped_when_every_member_is_even_if_all_of_is_live():
    route = choose("inputs.n", is_1=("a",), default=("z",))
    bench = Bench({"n": 0}, route=route, a=task(), z=task(), c=task("z", any_of=("a",)), end=end("z", "c")).start()
    bench.complete("z")
    assert bench.of("c") is SKIPPED
    assert bench.status is JobStatus.COMPLETED


def test_any_of_also_waits_for_all_of():
    bench = Bench(a=task(), b=task(), c=task("a", any_of=("b",)), end=end("c")).start()
    bench.complete("b")
    assert bench.of("c") is NodeStatus.PENDING
    bench.complete("a")
    assert bench.of("c") is NodeStatus.DISPATCHED


def test_a_source_may_be_named_in_both_all_of_and_any_of():
    bench = Bench(a=task(), b=task(), c=task("a", any_of=("a", "b")), end=end("c", "b")).start()
    bench.complete("a")
    assert bench.of("c") is NodeStatus.DISPATCHED


def test_a_conditional_in_any_of_counts_if_its_branch_targets_the_node():
    route = choose("inputs.n", is_1=("c",), default=())
    nodes: dict[str, Any] = {"route": route, "b": task(), "c": task(any_of=("route", "b")), "end": end("c")}
    taken, untaken = Bench({"n": 1}, **nodes).start(), Bench({"n": 0}, **nodes).start()
    assert taken.of("c") is NodeStatus.DISPATCHED
    assert untaken.of("c") is NodeStatus.PENDING
    untaken.complete("b")
    assert untaken.of("c") is NodeStatus.DISPATCHED


def test_a_failed_member_of_any_of_fails_the_job():
    bench = Bench(a=task(), b=task(), c=task(any_of=("a", "b")), end=end("c", "b")).start()
    bench.complete("a")
    bench.fail("b", permanent=True)
    assert bench.status is JobStatus.FAILED


def test_nodes_run_by_the_engine_are_never_queued():
    bench = Bench({"n": 1}, route=choose("inputs.n", is_1=("f",), default=()), f=fan_out([]), end=end("f")).start()
    assert bench.status is JobStatus.COMPLETED
    assert not bench.changes.dispatches
    engine_nodes = [node for node in bench.job.graph.nodes.values() if node.type is not NodeType.TASK]
    for node in engine_nodes:
        assert bench.events(node.node_id) == ["ready", "dispatched", "started", "completed"]
