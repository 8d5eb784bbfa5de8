"""Nodes that are added to a job while it runs, and the results of others in their parameters."""

from collections.abc import Mapping
from dataclasses import InitVar, dataclass, field
from hashlib import sha256
from typing import Any, Literal

from dagmaster.errors import Invalid
from dagmaster.model.retry import RetryPolicy

MAX_ID_LENGTH = 64
MAX_DEPTH = 100
# Of nodes that no task has added, but somebody from outside.
OUTSIDE = "added"
RESULT = "$result"
RESULT_OF = "$result_of"
_CONTAINERS = (dict, list, tuple)

NodeKind = Literal["task", "gate"]
EndKind = Literal["task", "group"]


@dataclass(frozen=True, slots=True)
class AddedNode:
    """A task, or a gate: a point where many edges meet, which the engine passes by itself.

    It waits for all of `after`, and for every node whose result its parameters name: `{"$result": "node_id"}`.
    Without `queue` it goes where the task that adds it came from; without `timeout_seconds` and `retry` it has those
    that the operator has set. `task` and `group` are snowflake ids.
    """

    node_id: str
    handler: str = ""
    params: Mapping[str, Any] = field(default_factory=dict, hash=False)
    after: tuple[str, ...] = ()
    type: NodeKind = "task"
    queue: str | None = None
    timeout_seconds: float | None = None
    retry: RetryPolicy | None = None
    task: int | None = None
    group: int | None = None
    label: str | None = None
    refs: tuple[str, ...] = field(init=False, repr=False, compare=False)  # the nodes whose results its parameters name
    names_no_results: InitVar[bool] = False  # when it is known without looking

    def __post_init__(self, names_no_results: bool) -> None:
        object.__setattr__(self, "refs", () if names_no_results else tuple(references(self.params)))


@dataclass(frozen=True, slots=True)
class AddedGroup:
    group_id: int
    name: str
    parent_group_id: int | None = None


@dataclass(frozen=True, slots=True)
class AddedDependency:
    """As it was said, for people to read; what counts is `after` of the nodes.

    Groups have snowflake ids. A task has one too, or is named by its node, which an attempt that is repeated finds
    again.
    """

    previous_id: int | str
    previous_type: EndKind
    next_id: int | str
    next_type: EndKind


def added_id(adder: str | None, name: str | int) -> str:
    """The id of a node that `adder` adds under this name or number; from outside, under the id of its task."""
    node_id = f"{adder or OUTSIDE}.{name}"
    if len(node_id) <= MAX_ID_LENGTH:
        return node_id
    return f"{node_id[:40]}~{sha256(node_id.encode()).hexdigest()[:12]}"


def may_add(adder: str | None, node_id: str) -> bool:
    """Whether a node of this id is one that `adder` may add."""
    start = f"{adder or OUTSIDE}."
    return node_id.startswith(start) or (len(node_id) == 53 and node_id[40] == "~" and node_id[:40] == start[:40])


def result_of(node_id: str) -> dict[str, str]:
    """Stands in parameters for the result of another node."""
    return {RESULT: node_id}


def awaited(node: AddedNode) -> tuple[str, ...]:
    """All that it waits for, each once."""
    if not node.refs and len(node.after) < 2:
        return node.after
    return tuple(dict.fromkeys((*node.after, *node.refs)))


def references(value: Any) -> list[str]:
    """The nodes whose results stand in the parameters."""
    node_ids: list[str] = []
    _find_references(value, 0, node_ids)
    return node_ids


def _find_references(value: Any, depth: int, node_ids: list[str]) -> None:
    if depth > MAX_DEPTH:
        raise Invalid(f"the parameters are nested more than {MAX_DEPTH} deep")
    if isinstance(value, dict):
        if RESULT in value and is_reference(value):
            node_ids.append(value[RESULT])
            return
        value = value.values()
    for item in value:
        if isinstance(item, _CONTAINERS):
            _find_references(item, depth + 1, node_ids)


def is_reference(value: Mapping[str, Any]) -> bool:
    return len(value) == 1 and isinstance(value.get(RESULT), str)


def fill_in(value: Any, results: Mapping[str, Any]) -> Any:
    """The parameters with the results in their places."""
    if isinstance(value, dict):
        if is_reference(value):
            return results[value[RESULT]]
        return {key: fill_in(item, results) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [fill_in(item, results) for item in value]
    return value
