from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagmaster.explain.estimate import Basis, Estimate, Usual, estimate, so_far, time_left
from dagmaster.model.compile import compile_graph
from dagmaster.model.graph import Graph
from dagmaster.model.progress import FanSnapshot, JobSnapshot, NodeSnapshot
from dagmaster.model.states import JobStatus, NodeStatus
from dagmaster.model.workflow import (
    Branch,
    ChildTask,
    ConditionalNode,
    DependsOn,
    EndNode,
    FanInNode,
    FanOutNode,
    Node,
    StartNode,
    TaskNode,
    Workflow,
)

NOW = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
TEN = Usual(10.0)


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def task(*following: str, **options: Any) -> TaskNode:
    return TaskNode(handler="work", queue="q", next=following, **options)


def graph(first: str, **nodes: Node) -> Graph:
    all_nodes = {"START": StartNode(next=(first,)), **nodes, "END": EndNode()}
    return compile_graph(Workflow(workflow_id="test", name="test", nodes=all_nodes))


def job(over: Graph, **snapshot: NodeSnapshot | NodeStatus) -> JobSnapshot:
    """Started, with every unnamed node pending."""
    nodes = {name: NodeSnapshot(NodeStatus.PENDING) for name in over.nodes} | {"START": NodeSnapshot(DONE)}
    for name, node in snapshot.items():
        nodes[name] = NodeSnapshot(node) if isinstance(node, NodeStatus) else node
    return JobSnapshot(JobStatus.RUNNING, NOW, nodes)


DONE, SKIPPED, RUNNING = NodeStatus.COMPLETED, NodeStatus.SKIPPED, NodeStatus.RUNNING
CHAIN = graph("a", a=task("b"), b=task("END"))
FAN = graph(
    "spread",
    spread=FanOutNode(source=[1], task=ChildTask(handler="work", queue="q"), next=("gather",)),
    gather=FanInNode(next=("last",)),
    last=task("END"),
)


def left(over: Graph, snapshot: JobSnapshot, **usual: Usual) -> float | None:
    result = time_left(over, snapshot, usual)
    return result.total_seconds() if result is not None else None


def test_sequential_nodes_take_the_sum_of_their_times() -> None:
    assert left(CHAIN, job(CHAIN), a=Usual(10), b=Usual(5, wait_seconds=1)) == 16
    assert left(CHAIN, job(CHAIN, a=DONE), a=Usual(10), b=Usual(5, wait_seconds=1)) == 6


def test_parallel_branches_take_the_longest_path() -> None:
    forked = graph("a", a=task("b", "c"), b=task("d"), c=task("d"), d=task("END"))
    times = {"a": TEN, "b": Usual(1), "c": Usual(30), "d": Usual(2)}
    assert left(forked, job(forked), **times) == 42
    running = NodeSnapshot(RUNNING, started_at=ago(25))
    assert left(forked, job(forked, a=DONE, b=DONE, c=running), **times) == 7


def test_a_running_node_counts_its_remainder_and_a_late_one_a_fifth_more() -> None:
    for elapsed, remaining in ((0, 10), (4, 6), (10, 2), (100, 20), (-5, 10)):
        running = NodeSnapshot(RUNNING, started_at=ago(elapsed))
        assert left(CHAIN, job(CHAIN, a=running), a=TEN, b=TEN) == remaining + 10


def test_the_usual_queue_time_counts_until_a_worker_claims_the_task() -> None:
    usual = Usual(10, wait_seconds=4)
    assert left(CHAIN, job(CHAIN, a=NodeSnapshot(NodeStatus.DISPATCHED, ago(1))), a=usual, b=TEN) == 23
    assert left(CHAIN, job(CHAIN, a=NodeSnapshot(NodeStatus.DISPATCHED, ago(50))), a=usual, b=TEN) == 30


def test_a_retry_includes_its_back_off() -> None:
    waiting = NodeSnapshot(NodeStatus.READY, ago(9), not_before=NOW + timedelta(seconds=30))
    assert left(CHAIN, job(CHAIN, a=waiting), a=TEN, b=TEN) == 50
    assert left(CHAIN, job(CHAIN, a=replace(waiting, not_before=ago(3))), a=TEN, b=TEN) == 20


def test_the_longest_branch_counts_until_one_is_taken() -> None:
    branches = (Branch(name="yes", when="{{ true }}", next=("long",)), Branch(name="no", next=("short",)))
    chosen = graph("choose", choose=ConditionalNode(branches=branches), long=task("END"), short=task("END"))
    times = {"long": Usual(60), "short": Usual(5)}
    assert left(chosen, job(chosen), **times) == 60
    assert left(chosen, job(chosen, choose=DONE, long=SKIPPED, short=NodeStatus.READY), **times) == 5


def test_a_never_taken_branch_counts_once_it_is_taken() -> None:
    branches = (Branch(name="bad", when="{{ false }}", next=("repair",)), Branch(name="good", next=("go_on",)))
    chosen = graph("choose", choose=ConditionalNode(branches=branches), repair=task("END"), go_on=task("END"))
    times = {"repair": Usual(None, is_skipped=True), "go_on": Usual(5)}
    assert left(chosen, job(chosen), **times) == 5
    assert left(chosen, job(chosen, choose=DONE, go_on=SKIPPED, repair=NodeStatus.READY), **times) is None


def test_any_of_counts_its_fastest_member_that_is_not_skipped() -> None:
    joined = graph(
        "a",
        a=task("b", "c", "d"),
        b=task(),
        c=task(),
        d=task(),
        e=task("END", depends_on=DependsOn(any_of=("b", "c", "d"))),
    )
    times = {"a": Usual(1), "b": Usual(20), "c": Usual(5), "d": Usual(3), "e": Usual(30)}
    assert left(joined, job(joined), **times) == 34
    assert left(joined, job(joined, a=DONE, d=SKIPPED), **times) == 35
    assert left(joined, job(joined, a=DONE), **{**times, "e": Usual(1)}) == 20, "the job waits for the others too"


# Fan-outs


def spread(items: int, since: float | None = None, **counts: int) -> NodeSnapshot:
    numbers: dict[str, int] = {NodeStatus(status): number for status, number in counts.items()}
    newest = ago(since) if since is not None else None
    return NodeSnapshot(DONE, fan=FanSnapshot(items, numbers, newest_started_at=newest))


@pytest.mark.parametrize(
    "snapshot, parallel, seconds",
    [
        (spread(10, ready=10), 4, 30),
        (spread(10, completed=6, ready=4), 4, 10),
        (spread(10, since=4, completed=2, running=4, dispatched=4), 4, 16),
        (spread(10, since=4, completed=9, running=1), 4, 6),
        (spread(10, since=20, completed=9, running=1), 4, 4),
        (spread(10, since=0, running=5, ready=5), 1, 20),
        (spread(3, ready=3), 0.5, 60),
        (spread(10, completed=10), 4, 0),
        (spread(10, completed=2, ready=2), 4, 20),
    ],
)
def test_children_are_estimated_in_parallel_batches(snapshot: NodeSnapshot, parallel: float, seconds: float) -> None:
    assert left(FAN, job(FAN, spread=snapshot), spread=Usual(10, parallel=parallel), last=Usual(1)) == seconds + 1


def test_max_parallel_limits_the_estimate() -> None:
    node = FanOutNode(source=[1], task=ChildTask(handler="work", queue="q"), max_parallel=2, next=("gather",))
    bounded = graph("spread", spread=node, gather=FanInNode(next=("END",)))
    assert left(bounded, job(bounded, spread=spread(10, ready=10)), spread=Usual(10, parallel=8)) == 50


def test_an_unexpanded_fan_out_has_its_usual_number_of_items() -> None:
    assert left(FAN, job(FAN), spread=Usual(10, items=6, parallel=3), last=Usual(1)) == 21
    assert left(FAN, job(FAN), spread=Usual(None, items=0), last=Usual(1)) == 1
    assert left(FAN, job(FAN, spread=spread(2, ready=2)), spread=Usual(None, items=0), last=Usual(1)) is None
    assert left(FAN, job(FAN, spread=DONE), spread=Usual(None), last=Usual(1)) == 1, "it had no items"


# Basis of the estimate


def test_without_enough_data_there_is_no_estimate() -> None:
    assert left(CHAIN, job(CHAIN), a=TEN) is None
    assert left(CHAIN, job(CHAIN, b=DONE), a=TEN) == 10, "what has ended need not be known"
    assert estimate(CHAIN, job(CHAIN), {"a": TEN}) is None


def test_history_takes_precedence_over_the_current_run() -> None:
    ended = NodeSnapshot(DONE, started_at=ago(20), completed_at=ago(17))
    history = {"a": Usual(4), "b": Usual(30)}
    assert estimate(CHAIN, job(CHAIN, a=ended), history) == Estimate(NOW + timedelta(seconds=30), Basis.HISTORY)
    assert estimate(CHAIN, job(CHAIN, a=ended), {}) == Estimate(NOW + timedelta(seconds=3), Basis.SO_FAR)
    passed_by = {"b": Usual(None, is_skipped=True)}
    ready = job(CHAIN, a=ended, b=NodeStatus.READY)
    assert estimate(CHAIN, ready, passed_by) == Estimate(NOW + timedelta(seconds=3), Basis.SO_FAR)


def test_ended_children_estimate_their_siblings() -> None:
    fan = FanSnapshot(9, {DONE: 4, RUNNING: 2, NodeStatus.READY: 3}, newest_started_at=NOW, child_seconds=6.0)
    begun = job(FAN, spread=NodeSnapshot(DONE, fan=fan), last=DONE)
    assert so_far(FAN, begun) == {"spread": Usual(6.0)}
    assert estimate(FAN, begun, {}) == Estimate(NOW + timedelta(seconds=18), Basis.SO_FAR)


@pytest.mark.parametrize("status", [status for status in JobStatus if status is not JobStatus.RUNNING])
def test_only_a_running_job_has_an_estimate(status: JobStatus) -> None:
    history = {"a": TEN, "b": TEN}
    assert estimate(CHAIN, job(CHAIN), history) is not None
    assert estimate(CHAIN, replace(job(CHAIN), status=status), history) is None
    assert estimate(CHAIN, replace(job(CHAIN), paused_at=ago(1)), history) is None


@given(
    statuses=st.tuples(*[st.sampled_from(list(NodeStatus))] * 3),
    times=st.tuples(*[st.floats(0, 1e6)] * 3),
    elapsed=st.floats(-1e3, 1e6),
)
def test_the_remaining_time_is_never_negative(
    statuses: tuple[Any, ...], times: tuple[float, ...], elapsed: float
) -> None:
    chain = graph("a", a=task("b"), b=task("c"), c=task("END"))
    snapshots = [NodeSnapshot(status, ago(elapsed), ago(elapsed)) for status in statuses]
    snapshot = job(chain, **dict(zip("abc", snapshots, strict=True)))
    remaining = left(chain, snapshot, **{name: Usual(seconds) for name, seconds in zip("abc", times, strict=True)})
    assert remaining is not None and remaining >= 0


def test_a_late_node_shows_by_how_much() -> None:
    late = NodeSnapshot(RUNNING, started_at=ago(130))
    result = estimate(CHAIN, job(CHAIN, a=late), {"a": TEN, "b": TEN})
    assert result is not None
    assert result.overdue == timedelta(seconds=120)
    in_time = estimate(CHAIN, job(CHAIN, a=NodeSnapshot(RUNNING, started_at=ago(5))), {"a": TEN, "b": TEN})
    assert in_time is not None
    assert in_time.overdue == timedelta()
