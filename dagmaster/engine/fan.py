"""Fan-out and fan-in: children are created in slices, so that a long list does not block other jobs."""

from collections.abc import Iterable
from typing import Any

import orjson

from dagmaster.engine import transitions
from dagmaster.engine.change_set import ChangeSet
from dagmaster.engine.messages import Expand
from dagmaster.engine.needs import counted, gathered, is_from_stored
from dagmaster.engine.scope import encode, item_scope, loaded_output, scope_of
from dagmaster.engine.state import FanState, JobState, NodeState, child_id
from dagmaster.errors import ExpressionFailed
from dagmaster.model.graph import FanInSpec, FanOutSpec
from dagmaster.model.sealed import holds_sealed
from dagmaster.model.shapes import item_box
from dagmaster.model.states import NodeStatus
from dagmaster.model.workflow import Aggregation

MAX_LISTED_CHILDREN = 1000
MAX_KEY_LENGTH = 128
# The fields of an object item that may serve as its key.
KEY_NAMES = ("key", "id", "name")


def resolve_items(changes: ChangeSet, node: NodeState) -> list[Any]:
    """The items to fan out over; the same each time, because inputs and outputs never change."""
    spec = _fan_out(node)
    items = spec.source.resolve(scope_of(changes))
    if isinstance(items, tuple | range):
        items = list(items)
    if not isinstance(items, list):
        raise ExpressionFailed(f"the source of a fan-out must be a list, this is {type(items).__name__}")
    if len(items) > changes.rules.max_fan_out:
        raise ExpressionFailed(f"a fan-out of {len(items)} items is over the limit of {changes.rules.max_fan_out}")
    return items


def open_fan(changes: ChangeSet, node: NodeState) -> None:
    items = _held_items(changes, node, fan := FanState())
    fan.total = len(items)
    changes.job.fans[node.node_id] = fan
    node.output = orjson.dumps({"fan_out_count": fan.total})


def _held_items(changes: ChangeSet, node: NodeState, fan: FanState) -> list[Any]:
    """Keep the items until all children exist; a list of stored values only for this change set."""
    if fan.items is None:
        fan.items = resolve_items(changes, node)
        if is_from_stored(changes.job, _fan_out(node).source.references):
            changes.large_fans.append(fan)
    return fan.items


def expand_slice(changes: ChangeSet, node: NodeState) -> bool:
    """Create the next slice of children; True when all exist."""
    fan = changes.job.fans[node.node_id]
    items = _held_items(changes, node, fan)
    for index in range(fan.created, min(fan.created + changes.rules.slice_size, fan.total)):
        _add_child(changes, node, index, items[index])
    if fan.created < fan.total:
        changes.follow_ups.append(Expand(node.node_id))
        return False
    return True


def _add_child(changes: ChangeSet, node: NodeState, index: int, item: Any) -> None:
    job, max_retries = changes.job, _fan_out(node).child.retry.max_attempts
    child = NodeState(child_id(node.node_id, index), node.spec, max_retries, parent=node.node_id, index=index)
    child.item_key, child.item_box = _key_of(item), item_box(item)
    job.nodes[child.node_id] = changes.created[child.node_id] = child
    job.open += 1
    fan = job.fans[node.node_id]
    fan.open += 1
    fan.created += 1
    transitions.ready(changes, child, [node.node_id])


def _key_of(item: Any) -> str | None:
    """A readable key of the item; None if it has none."""
    if isinstance(item, dict):
        item = next((item[name] for name in KEY_NAMES if isinstance(item.get(name), str | int)), None)
    if item is None or isinstance(item, dict | list | bool) or holds_sealed(item):
        return None
    return str(item)[:MAX_KEY_LENGTH]


def child_params(changes: ChangeSet, child: NodeState) -> Any:
    """Resolve the parameters of a child, with its item in scope."""
    assert child.parent is not None and child.index is not None
    fan = changes.job.fans[child.parent]
    items = _held_items(changes, changes.job.nodes[child.parent], fan)
    return child.task.params.resolve(item_scope(changes, items[child.index], child.index, fan.total))


def has_slot(job: JobState, child: NodeState) -> bool:
    """Whether `max_parallel` allows another child in flight."""
    assert child.parent is not None
    limit = _fan_out(child).max_parallel
    return limit is None or job.fans[child.parent].in_flight < limit


def fan_out_output(fan: FanState, node_id: str) -> bytes:
    listed = [child_id(node_id, index) for index in range(min(fan.total, MAX_LISTED_CHILDREN))]
    output: dict[str, Any] = {"fan_out_count": fan.total, "child_node_ids": listed}
    if fan.total > MAX_LISTED_CHILDREN:
        output["child_node_ids_truncated"] = True
    return orjson.dumps(output)


def _fan_out(node: NodeState) -> FanOutSpec:
    assert node.spec.fan_out is not None
    return node.spec.fan_out


def aggregate(changes: ChangeSet, spec: FanInSpec) -> bytes:
    """Combine the children's outputs, in the order of the items."""
    children = gathered(changes.job, spec)
    outputs = [b"null" if child.output is None else loaded_output(changes, child) for child in children]
    count = len(counted(changes.job, spec))
    failed = sum(child.status is NodeStatus.FAILED for child in changes.job.children(spec.fan_out))
    match spec.aggregation:
        case Aggregation.COLLECT:
            return b'{"results":[%b],"count":%d,"failed":%d}' % (b",".join(outputs), count, failed)
        case Aggregation.CONCAT:
            values = [value for output in outputs for value in _flatten(orjson.loads(output))]
            return encode({"results": values, "count": len(values), "failed": failed}, "the fan-in")
        case Aggregation.SUM:
            total = sum(number for output in outputs for number in _numbers(orjson.loads(output)))
            return encode({"total": total, "count": count, "failed": failed}, "the fan-in")
        case Aggregation.FIRST | Aggregation.LAST:
            output = outputs[0] if outputs else b"null"
            return b'{"result":%b,"count":%d,"failed":%d}' % (output, count, failed)
        case Aggregation.MERGE:
            merged = _merge(orjson.loads(output) for output in outputs)
            return encode({"result": merged, "count": count, "failed": failed}, "the fan-in")


def _flatten(output: Any) -> Iterable[Any]:
    """A list yields its items, an object with lists the items of its values, any other value itself."""
    if isinstance(output, list):
        return output
    if isinstance(output, dict) and any(isinstance(value, list) for value in output.values()):
        return [item for value in output.values() for item in (value if isinstance(value, list) else [value])]
    return [output]


def _numbers(output: Any) -> Iterable[int | float]:
    values = output.values() if isinstance(output, dict) else output if isinstance(output, list) else [output]
    return (value for value in values if isinstance(value, int | float) and not isinstance(value, bool))


def _merge(outputs: Iterable[Any]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for index, output in enumerate(outputs):
        if not isinstance(output, dict):
            raise ExpressionFailed(f"merge needs objects; the output of child {index} is {type(output).__name__}")
        merged.update(output)
    return merged
