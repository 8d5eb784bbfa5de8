"""Find the problems of a workflow before it runs."""

import re
from collections.abc import Collection, Iterator
from typing import Final

from dagmaster.model.edges import Ancestry, find_cycles, find_inbound, find_nearest_fan_outs, find_targets
from dagmaster.model.finalizers import ORDER, Phase, find_chain_problems, find_phases
from dagmaster.model.inputs import WrongType, accept, find_wrong_limits
from dagmaster.model.optional_handlers import how_to_load
from dagmaster.model.problems import Path, Problem, did_you_mean
from dagmaster.model.schedule_runs import find_schedule_problems
from dagmaster.model.scopes import find_expression_problems
from dagmaster.model.workflow import (
    CHILD_SEPARATOR,
    NODE_ID_PATTERN,
    ConditionalNode,
    EndNode,
    FanInNode,
    FanOutNode,
    InputType,
    Node,
    StartNode,
    Workflow,
)

MAX_NODES: Final = 5_000
MAX_HINTS: Final = 50  # each compares a name with those of all nodes
LOAD_HANDLER: Final = "load its module with --handlers or the setting 'handlers'"


def find_problems(
    workflow: Workflow, *, known_handlers: Collection[str] | None = None, has_all_links: bool = True
) -> list[Problem]:
    """All errors and warnings, without those that only follow from another problem.

    With `has_all_links` false (some could not be read), no problem is derived from a missing link.
    """
    if len(workflow.nodes) > MAX_NODES:
        return [Problem(f"a workflow may have at most {MAX_NODES} nodes, not {len(workflow.nodes)}", ("nodes",))]
    structure = _Structure(workflow, has_all_links)
    return [
        *_check_inputs(workflow),
        *find_schedule_problems(workflow),
        *_check_ids(workflow),
        *_check_ends(structure),
        *structure.dangling,
        *find_chain_problems(workflow, structure.inbound, structure.phases),
        *_check_cycles(structure),
        *_check_reachability(structure),
        *_check_links(structure),
        *_check_tasks(workflow, known_handlers),
        *_check_conditionals(structure),
        *_check_fan_ins(structure),
        *_check_expressions(structure),
    ]


class _Structure:
    """The workflow with its edges. `is_sound` is false if conclusions from the edges would mislead."""

    def __init__(self, workflow: Workflow, has_all_links: bool) -> None:
        self.workflow = workflow
        self.nodes = workflow.nodes
        self.inbound = find_inbound(workflow.nodes)
        self.phases = find_phases(workflow, self.inbound)
        self.dangling = list(_find_dangling(workflow))
        self.cycles = find_cycles(self.inbound)
        self.has_all_links = has_all_links
        self.is_sound = has_all_links and not self.dangling and not self.cycles
        self.ancestry = Ancestry(self.inbound)
        starts = any(isinstance(node, StartNode) for node in self.nodes.values())
        self.loose = [
            node_id
            for node_id, edges in self.inbound.items()
            if starts and self.is_sound and not edges.sources and not isinstance(self.nodes[node_id], StartNode)
            if self.phases[node_id] is Phase.MAIN
        ]

    def is_loose(self, node_id: str) -> bool:
        """Whether no path leads from the start to this node."""
        return any(root == node_id or self.ancestry.is_before(root, node_id) for root in self.loose)


# Inputs, ids, start and end


def _check_inputs(workflow: Workflow) -> Iterator[Problem]:
    for name, spec in workflow.inputs.items():
        if spec.secret and spec.type is not InputType.STRING:
            yield Problem(f"the secret input {name!r} must be a string, not {spec.type}", ("inputs", name))
        if spec.secret and spec.default is not None:
            yield Problem(
                f"the secret input {name!r} cannot have a default: anybody could read it", ("inputs", name, "default")
            )
        elif wrong := find_wrong_limits(spec):
            yield Problem(f"input {name!r}: {wrong}", ("inputs", name))
        elif spec.default is not None:
            try:
                accept(spec.default, spec)
            except WrongType as error:
                yield Problem(f"the default of input {name!r} {error}", ("inputs", name, "default"))


def _check_ids(workflow: Workflow) -> Iterator[Problem]:
    for node_id in workflow.nodes:
        if not re.fullmatch(NODE_ID_PATTERN, node_id) or CHILD_SEPARATOR in node_id:
            rule = "a letter, then letters, digits, '_' or '-', at most 48 in all, and no '__'"
            yield Problem(f"the node id {node_id!r} is not allowed: it must be {rule}", ("nodes", node_id))


def _check_ends(structure: _Structure) -> Iterator[Problem]:
    nodes = structure.nodes
    starts = [node_id for node_id, node in nodes.items() if isinstance(node, StartNode)]
    if not starts:
        yield Problem("the workflow has no start node", ("nodes",))
    for node_id in starts[1:]:
        yield Problem(f"{node_id!r} is a second start node; {starts[0]!r} is the first", ("nodes", node_id))
    if not any(isinstance(node, EndNode) for node in nodes.values()):
        yield Problem("the workflow has no end node", ("nodes",))
    for node_id, edges in structure.inbound.items():
        if edges.sources and node_id in starts:
            yield Problem(f"{edges.sources[0]!r} leads to the start node {node_id!r}; no node can", ("nodes", node_id))
        for source in edges.sources:
            if isinstance(nodes[source], EndNode):
                yield Problem(f"{node_id!r} follows the end node {source!r}; no node can", ("nodes", node_id))


# Links


def _links(node: Node) -> Iterator[tuple[Path, str]]:
    """Every place where a node refers to another node."""
    yield from ((("next", i), target) for i, target in enumerate(node.next))
    if node.depends_on:
        yield from ((("depends_on", "all_of", i), source) for i, source in enumerate(node.depends_on.all_of))
        yield from ((("depends_on", "any_of", i), source) for i, source in enumerate(node.depends_on.any_of))
    if isinstance(node, ConditionalNode):
        for number, branch in enumerate(node.branches):
            yield from ((("branches", number, "next", i), target) for i, target in enumerate(branch.next))
    if isinstance(node, FanInNode) and node.source_node:
        yield ("source_node",), node.source_node


def _find_dangling(workflow: Workflow) -> Iterator[Problem]:
    links = ((node_id, path, target) for node_id, node in workflow.nodes.items() for path, target in _links(node))
    dangling = (link for link in links if link[2] not in workflow.nodes)
    for number, (node_id, path, target) in enumerate(dangling):
        hint = did_you_mean(target, workflow.nodes) if number < MAX_HINTS else ""
        yield Problem(f"node {node_id!r} names an unknown node {target!r}{hint}", ("nodes", node_id, *path))


def _check_cycles(structure: _Structure) -> Iterator[Problem]:
    for cycle in structure.cycles:
        yield Problem(f"these nodes wait for each other: {' -> '.join(cycle)}", ("nodes", cycle[0]))


def _check_reachability(structure: _Structure) -> Iterator[Problem]:
    for node_id in structure.loose:
        advice = "name it in the 'next' of another node, or give it 'depends_on'"
        yield Problem(f"no node leads to {node_id!r}: {advice}", ("nodes", node_id))
    if not structure.is_sound or structure.loose:
        return
    for node_id, targets in find_targets(structure.inbound).items():
        is_main = structure.phases[node_id] is Phase.MAIN
        if is_main and not targets and not isinstance(structure.nodes[node_id], EndNode):
            message = f"node {node_id!r} does not lead to an end node"
            yield Problem(message, ("nodes", node_id), severity="warning")


def _check_links(structure: _Structure) -> Iterator[Problem]:
    if not structure.is_sound:
        return
    for node_id, node in structure.nodes.items():
        branching = {t for branch in node.branches for t in branch.next} if isinstance(node, ConditionalNode) else set()
        for number, target in enumerate(node.next):
            path = ("nodes", node_id, "next", number)
            if not structure.ancestry.is_before(node_id, target):
                message = f"this 'next' has no effect: {target!r} has 'depends_on' without {node_id!r}"
                yield Problem(message, path, severity="warning")
            elif target in branching:
                message = f"{target!r} is also in a branch of {node_id!r}: it follows whichever branch is taken"
                yield Problem(message, path, severity="warning")


# Requirements by node type


def _check_tasks(workflow: Workflow, known_handlers: Collection[str] | None) -> Iterator[Problem]:
    advised: set[str] = set()
    for path, task in workflow.tasks():
        node_id = path[1]
        if known_handlers is not None and task.handler not in known_handlers:
            near, advice = did_you_mean(task.handler, known_handlers), how_to_load(task.handler, known_handlers)
            if not near and advice in advised:
                continue  # A missing module is one problem, however many nodes need it.
            advised |= {advice} if advice else set()
            message = (
                f"node {node_id!r} names an unknown handler {task.handler!r}{near or f'; {advice or LOAD_HANDLER}'}"
            )
            yield Problem(message, (*path, "handler"), about="handler")
        if not task.queue and (known_handlers is None or task.handler in known_handlers):
            advice = f"give it a 'queue', register the handler {task.handler!r} with one, or set a default queue"
            yield Problem(f"node {node_id!r} has no queue: {advice}", path, about="queue")


def _check_conditionals(structure: _Structure) -> Iterator[Problem]:
    for node_id, node in structure.nodes.items():
        if isinstance(node, ConditionalNode):
            yield from _check_conditional(node_id, node, structure.has_all_links)


def _check_conditional(node_id: str, node: ConditionalNode, has_all_links: bool) -> Iterator[Problem]:
    path = ("nodes", node_id)
    if has_all_links and not any(branch.next for branch in node.branches):
        yield Problem(f"no branch of the conditional {node_id!r} leads anywhere", path)
        return
    defaults = [number for number, branch in enumerate(node.branches) if branch.when is None]
    if not defaults:
        yield Problem(f"the conditional {node_id!r} has no default branch", path)
    for number in defaults[1:]:
        yield Problem(f"the conditional {node_id!r} has a second default branch", (*path, "branches", number))
    names = [branch.name for branch in node.branches]
    for number, name in enumerate(names):
        if name in names[:number]:
            message = f"two branches of the conditional {node_id!r} are named {name!r}"
            yield Problem(message, (*path, "branches", number))


def _check_fan_ins(structure: _Structure) -> Iterator[Problem]:
    for node_id, node in structure.nodes.items():
        if isinstance(node, FanInNode) and structure.is_sound and not structure.is_loose(node_id):
            yield from _check_fan_in(node_id, node, structure)


def _check_fan_in(node_id: str, node: FanInNode, structure: _Structure) -> Iterator[Problem]:
    path = ("nodes", node_id)
    if source := node.source_node:
        if not isinstance(structure.nodes[source], FanOutNode):
            message = f"the source_node of {node_id!r} must be a fan_out, and {source!r} is not"
            yield Problem(message, (*path, "source_node"))
        elif not structure.ancestry.is_before(source, node_id):
            yield Problem(f"the fan_out {source!r} does not lead to the fan_in {node_id!r}", (*path, "source_node"))
        return
    nearest = find_nearest_fan_outs(node_id, structure.nodes, structure.inbound)
    if not nearest:
        yield Problem(f"no fan_out leads to the fan_in {node_id!r}", path)
    if len(nearest) > 1:
        names = " and ".join(map(repr, nearest))
        yield Problem(f"{names} are equally near to the fan_in {node_id!r}: choose one with 'source_node'", path)


def _check_expressions(structure: _Structure) -> Iterator[Problem]:
    positions = {node_id: ORDER.index(phase) for node_id, phase in structure.phases.items()}

    def is_before(ancestor: str, node_id: str) -> bool:
        if positions[ancestor] != positions[node_id]:
            return positions[ancestor] < positions[node_id]
        is_unknown = not structure.is_sound or structure.is_loose(node_id) or structure.is_loose(ancestor)
        return is_unknown or structure.ancestry.is_before(ancestor, node_id)

    finalizers = {node_id for node_id, phase in structure.phases.items() if phase is not Phase.MAIN}
    return find_expression_problems(structure.workflow, is_before, finalizers=finalizers)
