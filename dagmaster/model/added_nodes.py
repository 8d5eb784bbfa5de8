"""Nodes that are added to a running job, and references to results in their parameters."""

from collections.abc import Mapping
from dataclasses import InitVar, dataclass, field
from hashlib import sha256
from typing import Any, Literal

from dagmaster.errors import Invalid
from dagmaster.model.retry import RetryPolicy

MAX_ID_LENGTH = 64
MAX_DEPTH = 100
# The prefix of nodes that an external caller adds.
OUTSIDE = "added"
RESULT = "$result"
RESULT_OF = "$result_of"
_CONTAINERS = (dict, list, tuple)

NodeKind = Literal["task", "gate"]
EndKind = Literal["task", "group"]


@dataclass(frozen=True, slots=True)
class AddedNode:
    """A task, or a gate: a node without work at which many edges meet.

    It waits for all of `after`, and for every node whose result its parameters refer to: `{"$result": "node_id"}`.
    `queue` defaults to that of the task that adds it, `timeout_seconds` and `retry` to the operator's settings. `task`
    and `group` are snowflake ids.
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
    refs: tuple[str, ...] = field(init=False, repr=False, compare=False)  # nodes whose results the parameters use
    names_no_results: InitVar[bool] = False  # if the caller knows, to skip the search

    def __post_init__(self, names_no_results: bool) -> None:
        object.__setattr__(self, "refs", () if names_no_results else tuple(references(self.params)))


@dataclass(frozen=True, slots=True)
class AddedGroup:
    group_id: int
    name: str
    parent_group_id: int | None = None


@dataclass(frozen=True, slots=True)
class AddedDependency:
    """A dependency as its author wrote it, for display; the engine uses only `after` of the nodes.

    A group has a snowflake id. A task has one too, or is named by its node id, which stays the same in a repeated
    attempt.
    """

    previous_id: int | str
    previous_type: EndKind
    next_id: int | str
    next_type: EndKind


def added_id(adder: str | None, name: str | int) -> str:
    """The id of a node that `adder` adds under this name or number; an external caller adds it under its task's id."""
    node_id = f"{adder or OUTSIDE}.{name}"
    if len(node_id) <= MAX_ID_LENGTH:
        return node_id
    return f"{node_id[:40]}~{sha256(node_id.encode()).hexdigest()[:12]}"


def may_add(adder: str | None, node_id: str) -> bool:
    """Whether `adder` may add a node with this id."""
    start = f"{adder or OUTSIDE}."
    return node_id.startswith(start) or (len(node_id) == 53 and node_id[40] == "~" and node_id[:40] == start[:40])


def result_of(node_id: str) -> dict[str, str]:
    """The reference to another node's result, for use in parameters."""
    return {RESULT: node_id}


def awaited(node: AddedNode) -> tuple[str, ...]:
    """All nodes that it waits for, without duplicates."""
    if not node.refs and len(node.after) < 2:
        return node.after
    return tuple(dict.fromkeys((*node.after, *node.refs)))


def references(value: Any) -> list[str]:
    """The nodes whose results the parameters refer to."""
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
    """Replace the references in the parameters by the results."""
    if isinstance(value, dict):
        if is_reference(value):
            return results[value[RESULT]]
        return {key: fill_in(item, results) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [fill_in(item, results) for item in value]
    return value
