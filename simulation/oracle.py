"""Predict the outcome of a case from the workflow as written, by scanning edges, without the engine.

Deliberately slow and simple: it shares nothing with the engine but the vocabulary.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dagmaster.model.added_nodes import awaited
from dagmaster.model.finalizers import Phase
from dagmaster.model.states import NODE_TERMINAL, NodeStatus
from dagmaster.model.workflow import (
    CHILD_SEPARATOR,
    Aggregation,
    ConditionalNode,
    FanInNode,
    Workflow,
)
from simulation.cases import Case, may_fail, output_of, parent_of, source_of
from simulation.graphs import ValueRef

Statuses = Mapping[str, NodeStatus]


class Edges(NamedTuple):
    """The sources of a node's inbound edges."""

    all_of: tuple[str, ...]
    any_of: tuple[str, ...]


@dataclass(slots=True)
class Oracle:
    """`taken` is the branch of each conditional, `expected` how each node ends in a job that completes."""

    case: Case
    edges: dict[str, Edges] = field(default_factory=dict)
    chosen: dict[str, frozenset[str]] = field(default_factory=dict)
    routed: dict[str, frozenset[str]] = field(default_factory=dict)
    expected: dict[str, NodeStatus] = field(default_factory=dict)
    chains: dict[str, Phase] = field(default_factory=dict)
    is_main_over: bool = False
    is_failing: bool = False
    job_results: dict[str, str] = field(default_factory=dict)

    # When a node becomes ready or is skipped; see docs/explanation/rulings.md.

    def may_become_ready(self, node_id: str, statuses: Statuses) -> bool:
        """Every edge of `all_of` is decided, one of `any_of` (if any) is live, and at least one edge is live."""
        edges = self.edges[node_id]
        if not edges.all_of and not edges.any_of:
            return node_id not in self.chains or self._may_begin(self.chains[node_id], statuses)
        if any(self.verdict(source, node_id, statuses) is None for source in edges.all_of):
            return False
        lives = [source for source in edges.any_of if self.verdict(source, node_id, statuses)]
        if edges.any_of:
            return bool(lives)
        return any(self.verdict(source, node_id, statuses) for source in edges.all_of)

    def follows(self, node_id: str, revived: Collection[str], left: Collection[str]) -> bool:
        """Whether a retried node leads to it, and no node that was left out."""
        sources = {*self.edges[node_id].all_of, *self.edges[node_id].any_of}
        members = sources | {
            child for source in sources if source in self.case.items for child in self.children(source)
        }
        return not members.isdisjoint(revived) and members.isdisjoint(left)

    def may_be_skipped(self, node_id: str, statuses: Statuses) -> bool:
        """All its edges are dead; for a node with `any_of`, all of those."""
        edges = self.edges[node_id]
        decisive = edges.any_of or edges.all_of
        return bool(decisive) and all(self.verdict(source, node_id, statuses) is False for source in decisive)

    def must_move(self, node_id: str, statuses: Statuses) -> bool:
        """Whether it stands still although all its sources are decided."""
        if self.may_become_ready(node_id, statuses):
            return True
        edges = self.edges[node_id]
        if node_id in self.chains and not edges.all_of and not edges.any_of:
            return False
        return all(self.verdict(source, node_id, statuses) is not None for source in (*edges.all_of, *edges.any_of))

    def verdict(self, source: str, target: str, statuses: Statuses) -> bool | None:
        """Whether the edge is live or dead; None while it is undecided."""
        match statuses.get(source, NodeStatus.PENDING):
            case NodeStatus.SKIPPED:
                return False
            case NodeStatus.COMPLETED if self._has_open_children(source, statuses):
                return None
            case NodeStatus.FAILED if may_fail(source, self.case.blueprint.workflow):
                return True
            case NodeStatus.FAILED if source in self.chains:
                return False
            case NodeStatus.COMPLETED:
                return target not in self.routed.get(source, ()) or target in self.chosen[source]
            case _:
                return None

    def _may_begin(self, phase: Phase, statuses: Statuses) -> bool:
        """First the main nodes, then `on_failure`, then `finally`."""
        if not self.is_main_over:
            return False
        if phase is Phase.ON_FAILURE:
            return self.is_failing
        before = [node_id for node_id, other in self.chains.items() if other is Phase.ON_FAILURE]
        return all(statuses.get(node_id, NodeStatus.PENDING) in NODE_TERMINAL for node_id in before)

    def _has_open_children(self, node_id: str, statuses: Statuses) -> bool:
        children = self.children(node_id)
        return any(statuses.get(child, NodeStatus.PENDING) not in NODE_TERMINAL for child in children)

    def children(self, node_id: str) -> list[str]:
        items = self.case.items.get(node_id)
        return [f"{node_id}{CHILD_SEPARATOR}{index}" for index in range(len(items))] if items else []

    # Outputs.

    @property
    def doomed(self) -> set[str]:
        """The nodes that will run and are bound to fail."""
        doomed = set()
        for node_id, status in self.expected.items():
            is_allowed = may_fail(node_id, self.case.blueprint.workflow)
            if status is NodeStatus.COMPLETED and not is_allowed:
                tasks = [node_id, *self.children(node_id)]
                plans = [plan for task in tasks if (plan := self.case.plans.get(task)) is not None]
                is_broken = node_id in self.case.broken and not self._gathers_nothing(node_id)
                if is_broken or any(plan.is_doomed for plan in plans):
                    doomed.add(node_id)
        return doomed

    def _gathers_nothing(self, node_id: str) -> bool:
        """A fan-in whose fan-out is skipped still runs: then there is nothing it could fail to merge."""
        if not isinstance(self.case.blueprint.workflow.nodes.get(node_id), FanInNode):
            return False
        return self.expected[source_of(node_id, self.case.blueprint)] is NodeStatus.SKIPPED

    def output(self, node_id: str) -> Any:
        """The output of an executed node or of a fan-in."""
        node = self.case.blueprint.workflow.nodes.get(node_id)
        if isinstance(node, FanInNode):
            return self._aggregated(node_id, node.aggregation)
        if (giver := self.giver(node_id)) != node_id:
            return self.output(giver)
        return output_of(self.case.plans[node_id], self.params(node_id))

    def giver(self, node_id: str) -> str:
        """The node whose output this node returns."""
        addition = self.case.additions.get(node_id)
        return node_id if addition is None or addition.result_of is None else self.giver(addition.result_of)

    def params(self, node_id: str) -> dict[str, Any]:
        if node_id in self.case.added:
            return {key: self._param(value) for key, value in self.case.added[node_id].params.items()}
        if (parent := parent_of(node_id)) is not None:
            index, items = int(node_id.rpartition(CHILD_SEPARATOR)[2]), self.case.items[parent]
            return {"item": items[index], "index": index, "total": len(items)}
        if node_id in self.chains:
            return {"status": self.job_results[node_id]}
        return {key: self.value(ref) for key, ref in self.case.blueprint.params[node_id].items()}

    def _param(self, value: Any) -> Any:
        """The whole output of another node: no worker here returns a `result`."""
        if not isinstance(value, dict):
            return value
        [other] = value.values()
        is_null = self.expected[other] is NodeStatus.SKIPPED or self.case.added[other].type == "gate"
        return None if is_null else self.output(other)

    def value(self, ref: ValueRef) -> Any:
        if not ref.is_node:
            return self.case.inputs[ref.source]
        return self.case.plans[self.giver(ref.source)].value if self.expected[ref.source] is NodeStatus.COMPLETED else 0

    def _aggregated(self, fan_in: str, aggregation: Aggregation) -> dict[str, Any]:
        fan_out = source_of(fan_in, self.case.blueprint)
        skipped = self.expected[fan_out] is NodeStatus.SKIPPED
        outputs = [] if skipped else [self.output(child) for child in self.children(fan_out)]
        # No gathered fan-out may fail here.
        return {"count": len(outputs), "failed": 0} | self._combined(outputs, aggregation)

    def _combined(self, outputs: list[Any], aggregation: Aggregation) -> dict[str, Any]:
        match aggregation:
            case Aggregation.COLLECT:
                return {"results": outputs}
            case Aggregation.CONCAT:
                flat = [value for output in outputs for value in _flat(output)]
                return {"results": flat, "count": len(flat)}
            case Aggregation.SUM:
                return {"total": sum(_number(output) for output in outputs)}
            case Aggregation.FIRST:
                return {"result": outputs[0] if outputs else None}
            case Aggregation.LAST:
                return {"result": outputs[-1] if outputs else None}
            case Aggregation.MERGE:
                return {"result": {key: value for output in outputs for key, value in output.items()}}


def foresee(case: Case) -> Oracle:
    """Scan the nodes repeatedly until nothing changes."""
    workflow = case.blueprint.workflow
    oracle = Oracle(case, {node_id: _edges_into(node_id, workflow) for node_id in workflow.nodes})
    oracle.edges |= {node_id: Edges(awaited(node), ()) for node_id, node in case.added.items()}
    for node_id, node in workflow.nodes.items():
        if isinstance(node, ConditionalNode):
            oracle.routed[node_id] = frozenset(target for branch in node.branches for target in branch.next)
    oracle.chains = _chains(workflow)
    statuses = {node_id: NodeStatus.PENDING for node_id in workflow.nodes if node_id not in oracle.chains}
    oracle.expected = statuses
    while _foresee_more(oracle, statuses):
        pass
    ends = {Phase.ON_FAILURE: NodeStatus.SKIPPED, Phase.FINALLY: NodeStatus.COMPLETED}
    statuses.update({node_id: ends[phase] for node_id, phase in oracle.chains.items()})
    return oracle


def _chains(workflow: Workflow) -> dict[str, Phase]:
    """The finalizers: each chain is a line."""
    phases: dict[str, Phase] = {}
    for phase, heads in ((Phase.ON_FAILURE, workflow.on_failure), (Phase.FINALLY, workflow.finally_)):
        for head in heads:
            line: tuple[str, ...] = (head,)
            while line:
                phases[line[0]] = phase
                line = workflow.nodes[line[0]].next
    return phases


def _foresee_more(oracle: Oracle, statuses: dict[str, NodeStatus]) -> bool:
    changed = False
    for node_id, status in list(statuses.items()):
        if status is not NodeStatus.PENDING:
            continue
        if oracle.may_become_ready(node_id, statuses):
            _complete(oracle, node_id, statuses)
            changed = True
        elif oracle.may_be_skipped(node_id, statuses):
            statuses[node_id] = NodeStatus.SKIPPED
            changed = True
    return changed


def _complete(oracle: Oracle, node_id: str, statuses: dict[str, NodeStatus]) -> None:
    node = oracle.case.blueprint.workflow.nodes.get(node_id)
    if isinstance(node, ConditionalNode):
        switch = oracle.case.blueprint.switches[node_id]
        branch = min(oracle.value(switch.ref), switch.branches - 1)
        oracle.chosen[node_id] = frozenset(node.branches[branch].next)
    statuses[node_id] = NodeStatus.COMPLETED
    for name in (node_id, *oracle.children(node_id)):
        statuses[name] = NodeStatus.COMPLETED
        if (addition := oracle.case.additions.get(name)) is not None:
            statuses.update({node.node_id: NodeStatus.PENDING for part in addition.slices for node in part})


def _edges_into(target: str, workflow: Workflow) -> Edges:
    """`depends_on` takes precedence over `next`, but a branch always leads to its targets."""
    nodes, depends = workflow.nodes, workflow.nodes[target].depends_on
    linked = [node_id for node_id, node in nodes.items() if target in node.next]
    branching = [
        node_id
        for node_id, node in nodes.items()
        if isinstance(node, ConditionalNode) and any(target in branch.next for branch in node.branches)
    ]
    any_of = depends.any_of if depends else ()
    named = depends.all_of if depends and (depends.all_of or depends.any_of) else linked
    return Edges((*named, *(source for source in branching if source not in (*named, *any_of))), any_of)


def _flat(output: Any) -> list[Any]:
    if isinstance(output, list):
        return output
    values = list(output.values()) if isinstance(output, dict) else []
    if not any(isinstance(value, list) for value in values):
        return [output]
    return [item for value in values for item in (value if isinstance(value, list) else [value])]


def _number(output: Any) -> Any:
    values = list(output.values()) if isinstance(output, dict) else output if isinstance(output, list) else [output]
    return sum(value for value in values if type(value) in (int, float))
