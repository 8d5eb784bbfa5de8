"""The scope of a job's expressions. Outputs are decoded on demand, once per change set."""

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from dagmaster.engine.change_set import ChangeSet
from dagmaster.engine.state import NodeState
from dagmaster.engine.values import StoredValue
from dagmaster.errors import ExpressionFailed
from dagmaster.model.added_nodes import fill_in, references
from dagmaster.model.states import NodeStatus


class _NodeView(Mapping[str, Any]):
    __slots__ = ("_changes", "_decoded", "_node_id")

    def __init__(self, changes: ChangeSet, node_id: str) -> None:
        self._changes, self._node_id = changes, node_id
        self._decoded: tuple[bytes, Any] | None = None

    def __getitem__(self, key: str) -> Any:
        node = self._changes.job.nodes[self._node_id]
        if key == "status":
            return node.status.value
        if key == "output" and node.output is not None:
            output = loaded_output(self._changes, node)
            if self._decoded is None or self._decoded[0] is not output:
                self._decoded = (output, orjson.loads(output))
            return self._decoded[1]
        if key == "output" and self._shows_null(node):
            return None
        raise KeyError(key)

    def _shows_null(self, node: NodeState) -> bool:
        """Whether a missing output reads as null: of a node that was allowed to fail; in finalizers, of any node."""
        job = self._changes.job
        return node.status is NodeStatus.FAILED or (bool(job.open_finalizers) and not job.open_main)

    def __iter__(self) -> Iterator[str]:
        yield "status"
        if self._changes.job.nodes[self._node_id].output is not None:
            yield "output"

    def __len__(self) -> int:
        return sum(1 for _ in self)


class _NodesView(Mapping[str, _NodeView]):
    """The nodes of the definition."""

    __slots__ = ("_changes", "_nodes", "_views")

    def __init__(self, changes: ChangeSet) -> None:
        self._changes, self._nodes = changes, changes.job.graph.nodes
        self._views: dict[str, _NodeView] = {}

    def __getitem__(self, node_id: str) -> _NodeView:
        if node_id not in self._views:
            self._views[node_id] = _NodeView(self._changes, self._nodes[node_id].node_id)
        return self._views[node_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._nodes)

    def __len__(self) -> int:
        return len(self._nodes)


def scope_of(changes: ChangeSet) -> dict[str, Any]:
    """`job` tells the finalizers how the job ended."""
    job = changes.job
    if changes.scope is None:
        inputs = changes.loaded.inputs if isinstance(job.inputs, StoredValue) else job.inputs
        changes.scope = {"inputs": inputs, "nodes": _NodesView(changes), "env": changes.rules.env}
    status = "completed" if job.error is None else "failed"
    changes.scope["job"] = {"status": status, "error": job.error, "failed_node": job.failed_node}
    return changes.scope


def item_scope(changes: ChangeSet, item: Any, index: int, total: int) -> dict[str, Any]:
    """The scope of a fan-out's child."""
    fan_out = {"item": item, "index": index, "total": total}
    return {**scope_of(changes), "item": item, "index": index, "fan_out": fan_out}


def loaded_output(changes: ChangeSet, node: NodeState) -> bytes:
    """The output, which must be in memory or loaded for this change set."""
    output = changes.output_of(node)
    assert isinstance(output, bytes), f"the output of {node.node_id} was not loaded"
    return output


def added_params(changes: ChangeSet, node: NodeState) -> Any:
    """Resolve an added node's parameters with the results they refer to; a skipped node's result is null."""
    raw = node.task.params.raw
    return fill_in(raw, {name: _result(changes, changes.job.nodes[name]) for name in references(raw)})


def _result(changes: ChangeSet, node: NodeState) -> Any:
    output = orjson.loads(loaded_output(changes, node)) if node.output is not None else None
    return output["result"] if isinstance(output, dict) and "result" in output else output


def encode(value: Any, label: str) -> bytes:
    """Encode as JSON; the error names the value that cannot be encoded."""
    try:
        return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)
    except TypeError as error:
        raise ExpressionFailed(f"{label} cannot be written as JSON: {error}") from error
