"""Workflows to compile."""

from collections.abc import Mapping
from typing import Any

from dagmaster.model.checks import find_problems
from dagmaster.model.compile import compile_graph
from dagmaster.model.graph import GraphNode
from dagmaster.model.problems import Problem
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


def task(*following: str, all_of: tuple[str, ...] = (), any_of: tuple[str, ...] = (), **fields: Any) -> TaskNode:
    depends_on = DependsOn(all_of=all_of, any_of=any_of) if all_of or any_of else None
    return TaskNode(**{"handler": "h", "queue": "q", "next": following, "depends_on": depends_on, **fields})


def fan_out(*following: str, source: Any = "{{ inputs.list }}", **fields: Any) -> FanOutNode:
    child = ChildTask(**{"handler": "h", "queue": "q", **fields})
    return FanOutNode(source=source, task=child, next=following)


def choice(*branches: Branch, subject: str | None = None, following: tuple[str, ...] = ()) -> ConditionalNode:
    return ConditionalNode(branches=branches, subject=subject, next=following)


def either(on_true: str, on_false: str, when: str = "{{ inputs.flag }}") -> ConditionalNode:
    return choice(Branch(name="true", when=when, next=(on_true,)), Branch(name="false", next=(on_false,)))


INPUTS = {
    "list": InputSpec(type=InputType.ARRAY),
    "flag": InputSpec(type=InputType.BOOLEAN),
    "n": InputSpec(type=InputType.INTEGER),
}


def workflow(first: str | tuple[str, ...] = "a", **nodes: Node) -> Workflow:
    """START leads to the first nodes, END is added, and the nodes between are given."""
    start = StartNode(next=(first,) if isinstance(first, str) else first)
    return bare(START=start, **nodes, END=EndNode())


def bare(**nodes: Node) -> Workflow:
    return Workflow(workflow_id="w", name="w", inputs=INPUTS, nodes=nodes)


def edges_of(definition: Workflow) -> Mapping[str, GraphNode]:
    return compile_graph(definition).nodes


def errors(definition: Workflow, **options: Any) -> list[str]:
    return [problem.message for problem in find_problems(definition, **options) if problem.is_error]


def warnings(definition: Workflow) -> list[str]:
    return [problem.message for problem in find_problems(definition) if not problem.is_error]


def only_problem(definition: Workflow, **options: Any) -> Problem:
    (problem,) = find_problems(definition, **options)
    return problem
