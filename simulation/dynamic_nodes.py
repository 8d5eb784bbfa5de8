"""The nodes that the tasks of a random case add in each attempt: chains, gates, results of other nodes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from dagmaster.model.added_nodes import AddedNode, awaited, result_of
from dagmaster.model.finalizers import Phase
from dagmaster.model.retry import RetryPolicy
from dagmaster.model.workflow import CHILD_SEPARATOR, FanOutNode, MayFail, TaskNode
from simulation.graphs import QUEUE, Blueprint

CHANCE = 0.12
NESTED = 0.15


@dataclass(frozen=True, slots=True)
class Addition:
    """The nodes that a task adds, slice by slice. `result_of` is the added node whose result it returns."""

    slices: tuple[tuple[AddedNode, ...], ...]
    result_of: str | None = None

    def due(self, attempt: int, failures: int) -> Sequence[tuple[AddedNode, ...]]:
        """A failing attempt adds only some of them."""
        return self.slices if attempt >= failures else self.slices[: attempt % (len(self.slices) + 1)]


@dataclass(slots=True)
class _Draft:
    """`safe` nodes never wait for their adder, and are never skipped."""

    adder: str
    nodes: list[AddedNode] = field(default_factory=list)
    late: list[AddedNode] = field(default_factory=list)
    safe: list[str] = field(default_factory=list)


def random_additions(blueprint: Blueprint, items: Mapping[str, list[Any]], rng: Random) -> dict[str, Addition]:
    """By the node that adds them; some of the added nodes add others."""
    additions: dict[str, Addition] = {}
    for adder, siblings in _adders(blueprint, items):
        if rng.random() >= CHANCE:
            continue
        draft = _draft(adder, [*_main(blueprint), *siblings], rng)
        additions[adder] = _addition(draft, rng, gives=_may_give(adder, blueprint))
        for node in draft.nodes:
            if node.type == "task" and rng.random() < NESTED:
                additions[node.node_id] = _addition(_draft(node.node_id, _main(blueprint), rng), rng)
    return additions


def _adders(blueprint: Blueprint, items: Mapping[str, list[Any]]) -> Iterator[tuple[str, list[str]]]:
    """With the siblings that certainly exist when it runs."""
    for node_id in _main(blueprint):
        node = blueprint.workflow.nodes[node_id]
        if isinstance(node, MayFail) and node.allow_failure:
            continue  # The oracle does not predict additions before a failure.
        if isinstance(node, TaskNode):
            yield node_id, []
        if isinstance(node, FanOutNode):
            children = [f"{node_id}{CHILD_SEPARATOR}{index}" for index in range(len(items[node_id]))]
            for index, child in enumerate(children):
                yield child, children[:index]


def _main(blueprint: Blueprint) -> list[str]:
    """Without finalizers."""
    return [node_id for node_id, node in blueprint.graph.nodes.items() if node.phase is Phase.MAIN]


def _may_give(adder: str, blueprint: Blueprint) -> bool:
    """Not if others rely on the shape of its output, or on its echo."""
    parent, separator, _ = adder.rpartition(CHILD_SEPARATOR)
    if separator:
        return blueprint.fans[parent].shape == "object"
    return not any(name.startswith("list_") for name in blueprint.params.get(adder, ()))


def _draft(adder: str, anywhere: list[str], rng: Random) -> _Draft:
    draft = _Draft(adder)
    for number in range(rng.choice((1, 2, 3, 5))):
        node_id = f"{adder}.{number}"
        before = [node.node_id for node in draft.nodes]
        after = rng.sample(before, min(len(before), rng.choice((0, 0, 1, 2))))
        params: dict[str, Any] = {"number": number}
        if before and rng.random() < 0.3:
            params["given"] = result_of(rng.choice(before))
        if rng.random() < 0.3:
            after.append(rng.choice((*anywhere, adder)))
        is_gate = rng.random() < 0.2
        node = AddedNode(node_id, type="gate", after=tuple(after)) if is_gate else _task(node_id, params, after, rng)
        draft.nodes.append(node)
        if set(awaited(node)) <= set(draft.safe):
            draft.safe.append(node_id)
    _delay_some(draft, rng)
    return draft


def _task(node_id: str, params: dict[str, Any], after: Sequence[str], rng: Random) -> AddedNode:
    policy = RetryPolicy(max_attempts=rng.randint(0, 3), initial_delay_seconds=rng.choice((0, 1)))
    return AddedNode(node_id, "work", params, tuple(after), queue=QUEUE, timeout_seconds=100, retry=policy)


def _delay_some(draft: _Draft, rng: Random) -> None:
    """A node that waits for its adder cannot have started, so it may get more sources."""
    for node in draft.nodes:
        if draft.adder in node.after and rng.random() < 0.4:
            more = replace(_task(f"{draft.adder}.{len(draft.nodes) + len(draft.late)}", {}, (), rng), label="more")
            draft.late += [more, replace(node, after=(*node.after, more.node_id))]


def _addition(draft: _Draft, rng: Random, *, gives: bool = True) -> Addition:
    cut = rng.randint(0, len(draft.nodes))
    slices = [tuple(part) for part in (draft.nodes[:cut], draft.nodes[cut:], draft.late) if part]
    giving = [node.node_id for node in draft.nodes if node.node_id in draft.safe and node.type == "task"]
    return Addition(tuple(slices), rng.choice(giving) if gives and giving and rng.random() < 0.4 else None)


def by_id(additions: Mapping[str, Addition]) -> dict[str, AddedNode]:
    """Each in its final form."""
    return {node.node_id: node for addition in additions.values() for part in addition.slices for node in part}


def adder_of(node_id: str) -> str | None:
    """None for a node of the definition."""
    adder, separator, _ = node_id.rpartition(".")
    return adder if separator else None
