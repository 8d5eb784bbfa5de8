"""The scope of a job's expressions. Outputs are decoded on demand, once per change set."""

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from dagmaster.engine.change_set import ChangeSet
from dagmaster.engine.state import JobState, NodeState
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
    __slots__ = ("_changes", "_job", "_views")

    def __init__(self, changes: ChangeSet) -> None:
        self._changes, self._job = changes, changes.job
        self._views: dict[str, _NodeView] = {}

    def __getitem__(self, node_id: str) -> _NodeView:
        view = self._views.get(node_id)
        if view is None:
            if node_id not in self._job.graph.nodes:
                raise KeyError(node_id)
            view = self._views[node_id] = _NodeView(self._changes, node_id)
        return view

    def __iter__(self) -> Iterator[str]:
        return iter(self._job.graph.nodes)

    def __len__(self) -> int:
        return len(self._job.graph.nodes)


class _JobView(Mapping[str, Any]):
    """How the job ended, for its finalizers."""

    __slots__ = ("_job",)

    def __init__(self, job: JobState) -> None:
        self._job = job

    def __getitem__(self, key: str) -> Any:
        match key:
            case "status":
                return "completed" if self._job.error is None else "failed"
            case "error":
                return self._job.error
            case "failed_node":
                return self._job.failed_node
            case _:
                raise KeyError(key)

    def __iter__(self) -> Iterator[str]:
        return iter(("status", "error", "failed_node"))

    def __len__(self) -> int:
        return 3


def scope_of(changes: ChangeSet) -> dict[str, Any]:
    if changes.scope is None:
        job = changes.job
        inputs = changes.loaded.inputs if isinstance(job.inputs, StoredValue) else job.inputs
        changes.scope = {"inputs": inputs, "nodes": _NodesView(changes), "env": changes.rules.env, "job": _JobView(job)}
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
