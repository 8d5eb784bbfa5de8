"""The finalizers: `on_failure` chains run when a job fails, `finally` chains when it completes or fails."""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Final

from dagmaster.model.edges import Inbound, find_targets
from dagmaster.model.problems import Problem, did_you_mean
from dagmaster.model.workflow import EndNode, FanInNode, FanOutNode, StartNode, Workflow


class Phase(StrEnum):
    """The phases of a job, in this order."""

    MAIN = "main"
    ON_FAILURE = "on_failure"
    FINALLY = "finally"


ORDER: Final = tuple(Phase)
FINALIZERS: Final = (Phase.ON_FAILURE, Phase.FINALLY)


def find_heads(workflow: Workflow) -> dict[Phase, tuple[str, ...]]:
    """The first nodes of each chain."""
    return {Phase.ON_FAILURE: workflow.on_failure, Phase.FINALLY: workflow.finally_}


def find_phases(workflow: Workflow, inbound: Mapping[str, Inbound]) -> dict[str, Phase]:
    """The phase of every node. All nodes after the head of a chain belong to it."""
    phases = dict.fromkeys(workflow.nodes, Phase.MAIN)
    if not workflow.on_failure and not workflow.finally_:
        return phases
    targets = find_targets(inbound)
    for phase, heads in find_heads(workflow).items():
        stack = [head for head in heads if head in phases]
        while stack:
            node_id = stack.pop()
            if phases[node_id] is Phase.MAIN:
                phases[node_id] = phase
                stack += targets[node_id]
    return phases


def find_chain_problems(
    workflow: Workflow, inbound: Mapping[str, Inbound], phases: Mapping[str, Phase]
) -> Iterator[Problem]:
    """Chains are separate: no node leads into them, and they lead to no other node."""
    for phase, heads in find_heads(workflow).items():
        for number, head in enumerate(heads):
            if head not in workflow.nodes:
                hint = did_you_mean(head, workflow.nodes)
                yield Problem(f"{phase.value!r} names an unknown node {head!r}{hint}", (phase.value, number))
            elif phases[head] is not phase:
                yield Problem(f"node {head!r} cannot be in 'on_failure' and in 'finally'", (phase.value, number))
            elif inbound[head].sources:
                source = inbound[head].sources[0]
                message = f"{source!r} leads to {head!r}, which starts a chain of {phase.value!r}; no node can"
                yield Problem(message, (phase.value, number))
    for node_id, phase in phases.items():
        if phase is not Phase.MAIN:
            yield from _check_member(workflow, node_id, phase, inbound[node_id], phases)


def _check_member(
    workflow: Workflow, node_id: str, phase: Phase, edges: Inbound, phases: Mapping[str, Phase]
) -> Iterator[Problem]:
    path = ("nodes", node_id)
    node = workflow.nodes[node_id]
    if isinstance(node, StartNode | EndNode):
        message = f"the chain of {phase.value!r} leads to the {node.type} node {node_id!r}; it ends by itself"
        yield Problem(message, path)
        return
    if isinstance(node, FanOutNode | FanInNode):
        advice = "use a workflow node whose workflow has one"
        yield Problem(f"the {node.type} {node_id!r} cannot be in a chain of {phase.value!r}: {advice}", path)
    foreign = [source for source in edges.sources if phases[source] is not phase]
    if foreign and node_id not in find_heads(workflow)[phase]:
        message = f"{node_id!r} is in a chain of {phase.value!r}, and {foreign[0]!r}, which is not, leads to it"
        yield Problem(message, path)
