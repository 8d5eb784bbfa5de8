"""The JSON of nodes that are added to a job: encoding in slices, parsing and validation.

They come from users' programs; each slice is one JSON object with `nodes`, `groups` and `dependencies`.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from typing import Any, TypeVar

import orjson
from pydantic import ValidationError

from dagmaster.errors import Invalid
from dagmaster.model.added_nodes import (
    MAX_ID_LENGTH,
    AddedDependency,
    AddedGroup,
    AddedNode,
    EndKind,
    awaited,
)
from dagmaster.model.retry import RetryPolicy

T = TypeVar("T")

MAX_NAME_LENGTH = 128
MAX_SLICE_NODES = 1000
# A slice must fit into one HTTP request.
MAX_SLICE_BYTES = 512 * 1024
LONGEST_TIMEOUT_SECONDS = 86_400
_ID = re.compile(r"[A-Za-z0-9_.~-]{1,64}")


@dataclass(frozen=True, slots=True)
class Slice:
    nodes: tuple[AddedNode, ...] = ()
    groups: tuple[AddedGroup, ...] = ()
    dependencies: tuple[AddedDependency, ...] = ()


def encode_slices(
    nodes: Sequence[AddedNode],
    groups: Iterable[AddedGroup] = (),
    dependencies: Iterable[AddedDependency] = (),
    *,
    size: int = MAX_SLICE_NODES,
) -> list[bytes]:
    """Encode the nodes in slices, each node after the nodes it waits for. Raises Invalid if there is a cycle."""
    head = [{"id": group.group_id, "name": group.name, "parent": group.parent_group_id} for group in groups]
    tail = [[edge.previous_id, edge.previous_type, edge.next_id, edge.next_type] for edge in dependencies]
    parts = list(_parts([_encode_node(node) for node in _in_order(nodes)], size)) or [[]]
    slices = []
    for number, part in enumerate(parts):
        rows: dict[str, Any] = {"nodes": [orjson.Fragment(node) for node in part]}
        if number == 0 and head:
            rows["groups"] = head
        if number == len(parts) - 1 and tail:
            rows["dependencies"] = tail
        slices.append(orjson.dumps(rows))
    return slices


def _parts(encoded: Sequence[bytes], size: int) -> Iterator[list[bytes]]:
    part: list[bytes] = []
    room = MAX_SLICE_BYTES
    for node in encoded:
        if part and (len(part) == size or len(node) > room):
            yield part
            part, room = [], MAX_SLICE_BYTES
        part.append(node)
        room -= len(node)
    if part:
        yield part


def _in_order(nodes: Sequence[AddedNode]) -> Sequence[AddedNode]:
    """Keep the given order if it is topological."""
    remaining = {node.node_id: node for node in nodes}
    if len(remaining) < len(nodes):
        raise Invalid("two of the added nodes have the same id")
    for node in nodes:
        if any(node_id in remaining for node_id in awaited(node)):
            return _sorted(nodes)
        del remaining[node.node_id]
    return nodes


def _sorted(nodes: Sequence[AddedNode]) -> Sequence[AddedNode]:
    by_id = {node.node_id: node for node in nodes}
    waits_for = {node.node_id: [node_id for node_id in awaited(node) if node_id in by_id] for node in nodes}
    try:
        return [by_id[node_id] for node_id in TopologicalSorter(waits_for).static_order()]
    except CycleError as error:
        raise Invalid(f"the added nodes wait for each other: {' -> '.join(error.args[1])}") from error


def _encode_node(node: AddedNode) -> bytes:
    row = node_row(node, node.after, node.queue, node.timeout_seconds, node.retry)
    try:
        return orjson.dumps({"id": node.node_id, "params": node.params, **row})
    except TypeError as error:
        raise Invalid(f"the parameters of {node.node_id} cannot be written as JSON: {error}") from error


def node_row(
    node: AddedNode,
    after: Sequence[str],
    queue: str | None,
    timeout_seconds: float | None,
    retry: RetryPolicy | None,
) -> dict[str, Any]:
    """A node without id and parameters. Defaults are left out, because there may be many nodes."""
    row: dict[str, Any] = {"type": node.type}
    if node.type == "task":
        row["handler"] = node.handler
    if timeout_seconds is not None:
        row["timeout_seconds"] = timeout_seconds
    if retry is not None:
        row["retry"] = _retry_json(retry)
    if after:
        row["after"] = after
    optional = (("queue", queue), ("task", node.task), ("group", node.group), ("label", node.label))
    row.update((key, value) for key, value in optional if value is not None)
    return row


@lru_cache(maxsize=256)
def _retry_json(policy: RetryPolicy) -> orjson.Fragment:
    return orjson.Fragment(orjson.dumps(policy.model_dump(mode="json")))


def read_slice(body: bytes) -> Slice:
    """Parse a slice. Raises Invalid with the location of the error."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Invalid(f"the added nodes are not valid JSON: {error}") from error
    if b"\\u0000" in body and _has_nul(document):
        raise Invalid("the added nodes contain a NUL character (\\u0000), which PostgreSQL cannot store")
    if not isinstance(document, dict) or not document.keys() <= {"nodes", "groups", "dependencies"}:
        raise Invalid("the added nodes must be an object with the keys nodes, groups and dependencies")
    nodes, groups, dependencies = (_rows(document, key) for key in ("nodes", "groups", "dependencies"))
    if len(nodes) > MAX_SLICE_NODES:
        raise Invalid(f"a slice may have at most {MAX_SLICE_NODES} nodes, not {len(nodes)}")
    return Slice(
        tuple(read_node(row, f"nodes[{number}]") for number, row in enumerate(nodes)),
        tuple(_read_group(row, f"groups[{number}]") for number, row in enumerate(groups)),
        tuple(_read_dependency(row, f"dependencies[{number}]") for number, row in enumerate(dependencies)),
    )


def _has_nul(value: Any) -> bool:
    if isinstance(value, dict):
        return any("\0" in key or _has_nul(item) for key, item in value.items())
    if isinstance(value, list):
        return any(_has_nul(item) for item in value)
    return isinstance(value, str) and "\0" in value


def _rows(document: Mapping[str, Any], key: str) -> list[Any]:
    rows = document.get(key, [])
    if not isinstance(rows, list):
        raise Invalid(f"{key} must be a list")
    return rows


_NODE_KEYS = frozenset(
    ("id", "type", "handler", "params", "after", "queue", "timeout_seconds", "retry", "task", "group", "label")
)


def read_node(row: Any, where: str) -> AddedNode:
    if not isinstance(row, dict):
        raise Invalid(f"{where} must be an object")
    if unknown := row.keys() - _NODE_KEYS:
        raise Invalid(f"{where} has the unknown key {min(unknown)!r}; known are {', '.join(sorted(_NODE_KEYS))}")
    kind = row.get("type", "task")
    if kind not in ("task", "gate"):
        raise Invalid(f"{where}.type must be task or gate, not {kind!r}")
    params = row.get("params", {})
    if not isinstance(params, dict):
        raise Invalid(f"{where}.params must be an object")
    after = row.get("after", ())
    if not isinstance(after, list | tuple):
        raise Invalid(f"{where}.after must be a list of node ids")
    node = AddedNode(
        _node_id(row.get("id"), f"{where}.id"),
        _text(row.get("handler", ""), f"{where}.handler"),
        params,
        tuple(_node_id(previous, f"{where}.after") for previous in after),
        kind,
        _optional(_text, row, "queue", where),
        _optional(_timeout, row, "timeout_seconds", where),
        None if row.get("retry") is None else _policy(orjson.dumps(row["retry"])),
        _optional(_snowflake, row, "task", where),
        _optional(_snowflake, row, "group", where),
        _optional(_text, row, "label", where),
    )
    if (kind == "task") != bool(node.handler):
        raise Invalid(f"{where}: a task needs a handler, and a gate has none")
    for reference in node.refs:
        _node_id(reference, f"{where}.params: the reference to a result")
    return node


def _optional(read: Callable[[object, str], T], row: Mapping[str, Any], key: str, where: str) -> T | None:
    return None if row.get(key) is None else read(row[key], f"{where}.{key}")


def _node_id(value: object, where: str) -> str:
    if not isinstance(value, str) or _ID.fullmatch(value) is None:
        raise Invalid(
            f"{where} must be a node id of at most {MAX_ID_LENGTH} letters, digits and any of _.~-: {value!r}"
        )
    return value


def _text(value: object, where: str) -> str:
    if not isinstance(value, str) or len(value) > MAX_NAME_LENGTH or "\0" in value:
        raise Invalid(f"{where} must be a string of at most {MAX_NAME_LENGTH} characters")
    return value


def _timeout(value: object, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value <= LONGEST_TIMEOUT_SECONDS:
        raise Invalid(f"{where} must be between 1 and {LONGEST_TIMEOUT_SECONDS} seconds, not {value!r}")
    return value


def _snowflake(value: object, where: str) -> int:
    """A number, or a string, as JSON shows ids elsewhere."""
    if isinstance(value, str) and value.isdecimal() and value.isascii() and len(value) < 20:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        raise Invalid(f"{where} must be a snowflake id")
    return value


@lru_cache(maxsize=256)
def _policy(body: bytes) -> RetryPolicy:
    try:
        return RetryPolicy.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        path = ".".join(str(key) for key in first["loc"])
        raise Invalid(f"the retry policy {path} of an added node: {first['msg']}") from error


def _read_group(row: Any, where: str) -> AddedGroup:
    if not isinstance(row, dict) or not row.keys() <= {"id", "name", "parent"}:
        raise Invalid(f"{where} must be an object with the keys id, name and parent")
    if row.get("id") is None:
        raise Invalid(f"{where}.id is missing")
    group_id, name = _snowflake(row["id"], f"{where}.id"), _text(row.get("name"), f"{where}.name")
    return AddedGroup(group_id, name, _optional(_snowflake, row, "parent", where))


def _read_dependency(row: Any, where: str) -> AddedDependency:
    match row:
        case [previous, ("task" | "group") as previous_type, following, ("task" | "group") as next_type]:
            previous_id, next_id = _end(previous, previous_type, where), _end(following, next_type, where)
            return AddedDependency(previous_id, previous_type, next_id, next_type)
    raise Invalid(f"{where} must be [previous_id, 'task' | 'group', next_id, 'task' | 'group']")


def _end(value: object, kind: EndKind, where: str) -> int | str:
    if kind == "task" and isinstance(value, str) and not value.isdecimal():
        return _node_id(value, where)
    return _snowflake(value, where)
