"""The rules of the oracle, which is trusted because it is simple."""

from collections.abc import Mapping

import pytest

from dagmaster.model.compile import compile_graph
from dagmaster.model.states import NodeStatus
from dagmaster.model.workflow import (
    Branch,
    ChildTask,
    ConditionalNode,
    DependsOn,
    EndNode,
    FanOutNode,
    InputSpec,
    InputType,
    Node,
    StartNode,
    TaskNode,
    Workflow,
)
from simulation.cases import Case, Plan
from simulation.graphs import Blueprint, Fan, Switch, ValueRef
from simulation.oracle import Oracle, foresee

COMPLETED, SKIPPED, PENDING, RUNNING = (
    NodeStatus.COMPLETED,
    NodeStatus.SKIPPED,
    NodeStatus.PENDING,
    NodeStatus.RUNNING,
)


def task(all_of: tuple[str, ...] = (), any_of: tuple[str, ...] = (), *, then: tuple[str, ...] = ()) -> TaskNode:
    depends_on = DependsOn(all_of=all_of, any_of=any_of)
    return TaskNode(handler="work", queue="tasks", depends_on=depends_on, next=then)


def route(*first: str, other: tuple[str, ...] = ()) -> ConditionalNode:
    branches = (Branch(name="b0", when="== 0", next=first), Branch(name="b1", next=other))
    return ConditionalNode(subject="inputs.n", branches=branches)


def oracle(n: int = 0, **nodes: Node) -> Oracle:
    known = {
        "start": StartNode(next=tuple(name for name in ("a", "b", "r", "f") if name in nodes)),
        **nodes,
        "end": EndNode(depends_on=DependsOn(all_of=(list(nodes)[-1],))),
    }
    workflow = Workflow(workflow_id="w", name="w", inputs={"n": InputSpec(type=InputType.INTEGER)}, nodes=known)
    blueprint = Blueprint(
        workflow,
        compile_graph(workflow),
        {"r": Switch(ValueRef("n"), 2)},
        {},
        {"f": Fan("object", None, [1, 2])},
        frozenset(),
    )
    items = {"f": [1, 2]} if "f" in nodes else {}
    plans = {name: Plan(0) for name in nodes}
    return foresee(Case(blueprint, {"n": n}, items, plans, frozenset()))


def state(**statuses: NodeStatus) -> Mapping[str, NodeStatus]:
    return {"start": COMPLETED, **statuses}


def test_all_of_waits_for_every_edge_and_needs_a_live_one() -> None:
    both = oracle(a=task(), b=task(), c=task(("a", "b")))
    assert not both.may_become_ready("c", state(a=COMPLETED, b=RUNNING))
    assert both.may_become_ready("c", state(a=COMPLETED, b=SKIPPED))
    assert not both.may_become_ready("c", state(a=SKIPPED, b=SKIPPED))
    assert both.may_be_skipped("c", state(a=SKIPPED, b=SKIPPED))
    assert not both.may_be_skipped("c", state(a=SKIPPED, b=RUNNING))


def test_any_of_needs_a_completed_member() -> None:
    either = oracle(a=task(), b=task(), c=task((), ("a", "b")))
    assert either.may_become_ready("c", state(a=COMPLETED, b=RUNNING))
    assert not either.may_become_ready("c", state(a=SKIPPED, b=RUNNING))
    assert either.may_be_skipped("c", state(a=SKIPPED, b=SKIPPED))


@pytest.mark.parametrize(("n", "a", "b"), [(0, COMPLETED, SKIPPED), (1, SKIPPED, COMPLETED)])
def test_an_untaken_branch_is_skipped(n: int, a: NodeStatus, b: NodeStatus) -> None:
    expected = oracle(n, r=route("a1", other=("b1",)), a1=task(), b1=task(), c=task(("a1", "b1"))).expected
    assert (expected["a1"], expected["b1"], expected["c"]) == (a, b, COMPLETED)


def test_a_skipped_optional_step_does_not_skip_its_successors() -> None:
    nodes: dict[str, Node] = {"r": route("x", other=("y",)), "x": task(then=("y",)), "y": task()}
    assert (oracle(0, **nodes).expected["x"], oracle(0, **nodes).expected["y"]) == (COMPLETED, COMPLETED)
    assert (oracle(1, **nodes).expected["x"], oracle(1, **nodes).expected["y"]) == (SKIPPED, COMPLETED)


def test_successors_of_a_fan_out_wait_for_its_children() -> None:
    child = ChildTask(handler="work", queue="tasks")
    fanned = oracle(f=FanOutNode(source=[1, 2], task=child), c=task(("f",)))
    assert not fanned.may_become_ready("c", state(f=COMPLETED, f__0=COMPLETED, f__1=RUNNING))
    assert not fanned.may_become_ready("c", state(f=COMPLETED, f__0=COMPLETED))
    assert fanned.may_become_ready("c", state(f=COMPLETED, f__0=COMPLETED, f__1=COMPLETED))


def test_a_node_waits_only_while_something_is_undecided() -> None:
    both = oracle(a=task(), b=task(), c=task(("a", "b")))
    assert not both.must_move("c", state(a=COMPLETED, b=PENDING))
    assert both.must_move("c", state(a=SKIPPED, b=SKIPPED))
