"""Compiling: edges, order and the values of each node."""

from itertools import pairwise
from time import process_time
from timeit import timeit

from compile_bench import bare, choice, edges_of, either, fan_out, task, warnings, workflow
from hypothesis import given
from hypothesis import strategies as st

from dagmaster.model.compile import assemble_graph, compile_graph
from dagmaster.model.edges import Inbound, find_cycles, find_inbound, find_targets, sort_topologically
from dagmaster.model.graph import NodeType
from dagmaster.model.problems import InvalidWorkflow
from dagmaster.model.retry import RetryPolicy
from dagmaster.model.workflow import (
    Aggregation,
    Branch,
    ChildTask,
    DependsOn,
    EndNode,
    FanInNode,
    FanOutNode,
    Node,
    StartNode,
)

# Edges


def test_next_creates_all_of_edges() -> None:
    nodes = edges_of(workflow(("a", "b"), a=task("c"), b=task("c"), c=task("END")))
    assert nodes["c"].all_of == ("a", "b")
    assert nodes["c"].any_of == ()
    assert nodes["START"].targets == ("a", "b")
    assert nodes["END"].all_of == ("c",)


def test_depends_on_creates_edges() -> None:
    nodes = edges_of(workflow(("a", "b"), a=task(), b=task(), c=task("END", all_of=("a",), any_of=("b",))))
    assert nodes["c"].all_of == ("a",)
    assert nodes["c"].any_of == ("b",)
    assert nodes["a"].targets == ("c",)


def test_depends_on_takes_precedence_over_next() -> None:
    definition = workflow(("a", "b"), a=task("c"), b=task("c", "END"), c=task("END", all_of=("a",)))
    nodes = edges_of(definition)
    assert nodes["c"].all_of == ("a",)
    assert nodes["b"].targets == ("END",)
    assert warnings(definition) == ["this 'next' has no effect: 'c' has 'depends_on' without 'b'"]


def test_a_branch_reaches_its_targets_even_if_depends_on_omits_it() -> None:
    definition = workflow(("c", "x"), c=either("a", "END"), x=task(), a=task("END", all_of=("x",)))
    nodes = edges_of(definition)
    assert nodes["a"].all_of == ("x", "c")
    assert nodes["c"].targets == ("a", "END")


def test_a_conditional_that_is_a_member_is_not_added_again() -> None:
    nodes = edges_of(workflow(("c", "x"), c=either("a", "END"), x=task(), a=task("END", any_of=("x", "c"))))
    assert nodes["a"].all_of == ()
    assert nodes["a"].any_of == ("x", "c")


def test_a_target_of_two_branches_has_one_edge() -> None:
    nodes = edges_of(workflow("c", c=either("a", "a"), a=task("END", "END")))
    assert nodes["a"].all_of == ("c",)
    assert nodes["c"].targets == ("a",)
    assert nodes["a"].targets == ("END",)


def test_the_next_of_a_conditional_is_an_ordinary_edge() -> None:
    conditional = choice(Branch(name="t", when="true", next=("a",)), Branch(name="f"), following=("b",))
    nodes = edges_of(workflow("c", c=conditional, a=task("END"), b=task("END")))
    assert nodes["c"].targets == ("a", "b")
    assert [branch.targets for branch in nodes["c"].branches] == [("a",), ()]


def test_nodes_are_sorted_and_the_start_is_the_only_root() -> None:
    graph = compile_graph(bare(END=EndNode(), b=task("END"), a=task("b"), START=StartNode(next=("a",))))
    assert list(graph.nodes) == ["START", "a", "b", "END"]
    assert graph.roots == ("START",)
    assert graph.workflow.workflow_id == "w"


# Values of nodes


def test_a_task_gets_defaults() -> None:
    nodes = compile_graph(
        workflow(a=task("b"), b=task("END", timeout_seconds=5, retry=RetryPolicy(max_attempts=0))),
        default_timeout_seconds=77,
        default_retry=RetryPolicy(max_attempts=9),
    ).nodes
    a, b = nodes["a"].task, nodes["b"].task
    assert a is not None
    assert b is not None
    assert (a.timeout_seconds, a.retry.max_attempts) == (77, 9)
    assert (b.timeout_seconds, b.retry.max_attempts) == (5, 0)
    assert nodes["b"].retry.max_attempts == 0
    assert nodes["START"].type is NodeType.START


def test_globals_are_merged_below_params() -> None:
    definition = workflow(a=task("f", params={"x": "own"}), f=fan_out("END", params={"i": "{{ item }}"}))
    definition = definition.model_copy(update={"globals": {"x": "global", "n": "{{ inputs.n }}"}})
    nodes = edges_of(definition)
    scope = {"inputs": {"n": 3}, "item": 8}
    assert nodes["a"].task is not None
    assert nodes["a"].task.params.resolve(scope) == {"x": "own", "n": 3}
    assert nodes["f"].fan_out is not None
    assert nodes["f"].fan_out.child.params.resolve(scope) == {"x": "global", "n": 3, "i": 8}


def test_a_fan_out_gets_its_child_and_its_source() -> None:
    node = FanOutNode(
        source="{{ inputs.list }}",
        task=ChildTask(handler="tile", queue="heavy", params={"t": "{{ item }}"}, timeout_seconds=9),
        max_parallel=4,
        retry=RetryPolicy(max_attempts=1),
        next=("END",),
    )
    spec = edges_of(workflow("f", f=node))["f"].fan_out
    assert spec is not None
    assert spec.source.resolve({"inputs": {"list": [1]}}) == [1]
    assert (spec.child.handler, spec.child.queue, spec.child.timeout_seconds, spec.max_parallel) == (
        "tile",
        "heavy",
        9,
        4,
    )
    assert spec.child.retry.max_attempts == 1


def test_the_childs_own_retry_policy_takes_precedence() -> None:
    node = FanOutNode(
        source=[1],
        task=ChildTask(handler="h", queue="q", retry=RetryPolicy(max_attempts=2)),
        retry=RetryPolicy(max_attempts=1),
        next=("END",),
    )
    compiled = edges_of(workflow("f", f=node))["f"]
    assert compiled.fan_out is not None
    assert (compiled.retry.max_attempts, compiled.fan_out.child.retry.max_attempts) == (1, 2)


def test_the_default_branch_is_evaluated_last() -> None:
    node = choice(Branch(name="d", next=("END",)), Branch(name="big", when="> 10", next=("a",)), subject="inputs.n")
    branches = edges_of(workflow("c", c=node, a=task("END")))["c"].branches
    assert [branch.name for branch in branches] == ["big", "d"]
    assert branches[0].condition is not None
    assert branches[0].condition.evaluate({"inputs": {"n": 11}}).matched
    assert branches[1].condition is None


def test_a_fan_in_uses_the_nearest_fan_out() -> None:
    nodes = edges_of(
        workflow(
            "f", f=fan_out("g"), g=fan_out("m"), m=task("i"), i=FanInNode(next=("END",), aggregation=Aggregation.SUM)
        )
    )
    assert nodes["i"].fan_in is not None
    assert nodes["i"].fan_in.fan_out == "g"
    assert nodes["i"].fan_in.aggregation is Aggregation.SUM


def test_a_fan_in_finds_its_fan_out_through_depends_on() -> None:
    node = FanInNode(depends_on=DependsOn(all_of=("f",)), next=("END",))
    spec = edges_of(workflow("f", f=fan_out(), i=node))["i"].fan_in
    assert spec is not None
    assert spec.fan_out == "f"


def test_source_node_selects_a_fan_out() -> None:
    nodes = edges_of(workflow("f", f=fan_out("g"), g=fan_out("i"), i=FanInNode(source_node="f", next=("END",))))
    assert nodes["i"].fan_in is not None
    assert nodes["i"].fan_in.fan_out == "f"


# Properties

IDS = [f"n{i}" for i in range(8)]
GRAPHS = st.dictionaries(st.sampled_from(IDS), st.lists(st.sampled_from(IDS), max_size=3), min_size=1)


@given(GRAPHS)
def test_every_node_is_either_ordered_or_in_a_cycle(links: dict[str, list[str]]) -> None:
    inbound = find_inbound({node_id: task(*following) for node_id, following in links.items()})
    order = sort_topologically(inbound)
    place = {node_id: i for i, node_id in enumerate(order)}
    assert all(place[source] < place[node_id] for node_id in order for source in inbound[node_id].sources)
    assert bool(find_cycles(inbound)) is (len(order) < len(inbound))


@given(GRAPHS)
def test_reported_cycles_are_cycles_and_disjoint(links: dict[str, list[str]]) -> None:
    inbound = find_inbound({node_id: task(*following) for node_id, following in links.items()})
    seen: set[str] = set()
    for cycle in find_cycles(inbound):
        assert cycle[0] == cycle[-1]
        assert all(source in inbound[target].sources for source, target in pairwise(cycle))
        assert not seen & set(cycle)
        seen |= set(cycle)


@given(GRAPHS)
def test_targets_are_the_inverse_of_inbound(links: dict[str, list[str]]) -> None:
    inbound = find_inbound({node_id: task(*following) for node_id, following in links.items()})
    targets = find_targets(inbound)
    forward = {(source, target) for source, ends in targets.items() for target in ends}
    assert forward == {(source, target) for target, edges in inbound.items() for source in edges.sources}


@given(GRAPHS)
def test_any_wiring_compiles_or_has_a_problem(links: dict[str, list[str]]) -> None:
    nodes: dict[str, Node] = {node_id: task(*following, "END") for node_id, following in links.items()}
    definition = workflow(tuple(nodes), **nodes)
    try:
        graph = compile_graph(definition)
    except InvalidWorkflow as error:
        assert any(problem.is_error for problem in error.problems)
    else:
        assert set(graph.nodes) == set(definition.nodes)
        assert graph.roots == ("START",)
        assert assemble_graph(definition) == graph


def test_members_in_both_lists_count_as_one_source() -> None:
    assert Inbound(("a", "b"), ("b", "c")).sources == ("a", "b", "c")


def test_a_large_workflow_compiles_in_seconds() -> None:
    chain: dict[str, Node] = {
        f"n{i}": task(
            f"n{i + 1}" if i < 1999 else "END", params={"x": f"{{{{ nodes.n{i - 1}.output.y }}}}"} if i else {}
        )
        for i in range(2000)
    }
    definition = workflow("n0", **chain)
    assert timeit(lambda: compile_graph(definition), number=1, timer=process_time) < 5
