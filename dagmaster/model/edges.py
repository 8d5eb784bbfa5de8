"""The edges of a workflow, and the order, cycles and ancestors that they imply."""

from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Final

from dagmaster.model.workflow import ConditionalNode, FanOutNode, Node

MAX_CYCLES: Final = 20


@dataclass(frozen=True, slots=True)
class Inbound:
    """The sources of a node's inbound edges."""

    all_of: tuple[str, ...] = ()
    any_of: tuple[str, ...] = ()

    @property
    def sources(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.all_of, *self.any_of)))


def find_inbound(nodes: Mapping[str, Node]) -> dict[str, Inbound]:
    """`depends_on` takes precedence over `next`, but a branch always leads to its targets. Unknown ids are ignored."""
    by_next, by_branch = _link(nodes)
    inbound = {}
    for node_id, node in nodes.items():
        all_of, any_of = by_next[node_id], list[str]()
        named = node.depends_on
        if named is not None and (named.all_of or named.any_of):
            all_of = [source for source in named.all_of if source in nodes]
            any_of = [source for source in named.any_of if source in nodes]
        branching = [source for source in by_branch[node_id] if source not in any_of]
        inbound[node_id] = Inbound(tuple(dict.fromkeys([*all_of, *branching])), tuple(dict.fromkeys(any_of)))
    return inbound


def find_targets(inbound: Mapping[str, Inbound]) -> dict[str, tuple[str, ...]]:
    """The same edges by source."""
    targets: dict[str, list[str]] = {node_id: [] for node_id in inbound}
    for node_id, edges in inbound.items():
        for source in edges.sources:
            targets[source].append(node_id)
    return {node_id: tuple(ids) for node_id, ids in targets.items()}


def sort_topologically(inbound: Mapping[str, Inbound]) -> list[str]:
    """Every node after its sources, otherwise in written order. Nodes on or after a cycle are left out."""
    targets = find_targets(inbound)
    waiting = {node_id: len(edges.sources) for node_id, edges in inbound.items()}
    ready = deque(node_id for node_id, count in waiting.items() if not count)
    order = []
    while ready:
        order.append(ready.popleft())
        for target in targets[order[-1]]:
            waiting[target] -= 1
            if not waiting[target]:
                ready.append(target)
    return order


def find_cycles(inbound: Mapping[str, Inbound]) -> list[list[str]]:
    """One cycle per strongly connected part, along the edges; the first node is repeated at the end.

    At most MAX_CYCLES: the search for each reads the whole graph.
    """
    remaining = {node_id: edges.sources for node_id, edges in inbound.items()}
    cycles: list[list[str]] = []
    while len(cycles) < MAX_CYCLES and (cycle := _find_cycle(remaining)):
        first = cycle.index(next(node_id for node_id in remaining if node_id in cycle))
        cycles.append([*cycle[first:], *cycle[: first + 1]])
        remaining = {
            node_id: tuple(source for source in sources if source not in cycle)
            for node_id, sources in remaining.items()
            if node_id not in cycle
        }
    return cycles


def _find_cycle(sources: Mapping[str, tuple[str, ...]]) -> list[str]:
    try:
        TopologicalSorter(sources).prepare()
    except CycleError as error:
        return list(error.args[1][1:])
    return []


class Ancestry:
    """The ancestors of each node. Sets of nodes are bits of integers, which keeps thousands of nodes cheap."""

    def __init__(self, inbound: Mapping[str, Inbound]) -> None:
        order = sort_topologically(inbound)
        self._bits = {node_id: 1 << position for position, node_id in enumerate(order)}
        self._before: dict[str, int] = {}
        for node_id in order:
            before = 0
            for source in inbound[node_id].sources:
                before |= self._before[source] | self._bits[source]
            self._before[node_id] = before

    def is_before(self, ancestor: str, node_id: str) -> bool:
        return bool(self._before[node_id] & self._bits[ancestor])


def find_nearest_fan_outs(node_id: str, nodes: Mapping[str, Node], inbound: Mapping[str, Inbound]) -> list[str]:
    """The fan-outs fewest edges upstream; several if they are equally near."""
    level, seen = [node_id], {node_id}
    while level:
        sources = dict.fromkeys(source for member in level for source in inbound[member].sources)
        level = [source for source in sources if source not in seen]
        seen.update(level)
        if fan_outs := [source for source in level if isinstance(nodes[source], FanOutNode)]:
            return fan_outs
    return []


def _link(nodes: Mapping[str, Node]) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    by_next, by_branch = defaultdict[str, list[str]](list), defaultdict[str, list[str]](list)
    for node_id, node in nodes.items():
        for target in node.next:
            by_next[target].append(node_id)
        for branch in node.branches if isinstance(node, ConditionalNode) else ():
            for target in branch.next:
                by_branch[target].append(node_id)
    return by_next, by_branch
