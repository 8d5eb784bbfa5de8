"""Nodes that are added at run time: their row holds their own definition; in memory they are ordinary nodes."""

from dataclasses import replace
from functools import lru_cache

import orjson

from dagmaster.engine.state import NodeState
from dagmaster.model.added_nodes import AddedNode, awaited
from dagmaster.model.dynamic_nodes import node_row, read_node
from dagmaster.model.expressions import Template
from dagmaster.model.graph import GraphNode, NodeType, TaskSpec
from dagmaster.model.retry import RetryPolicy
from dagmaster.model.workflow import DEFAULT_TIMEOUT_SECONDS

_NO_PARAMS = Template({})
_NO_RETRIES = RetryPolicy(max_attempts=0)
# The policy of a row without one. Fixed, so that a changed default does not change stored nodes.
_USUAL_RETRY = RetryPolicy()


def encode_definition(added: AddedNode, node: NodeState) -> bytes:
    """Encode the definition for the row. Parameters that refer to results are kept here until those results exist."""
    task = node.spec.task
    queue, timeout, retry = (task.queue, task.timeout_seconds, task.retry) if task else (None, None, None)
    row = node_row(
        added,
        node.spec.all_of,
        queue,
        None if timeout == DEFAULT_TIMEOUT_SECONDS else timeout,
        None if retry is _USUAL_RETRY or retry == _USUAL_RETRY else retry,
    )
    if task is not None and task.params.raw:
        row["refs"] = task.params.raw
    if node.snowflake is not None:  # The id of the first attempt: dependencies refer to it.
        row["task"] = node.snowflake
    return orjson.dumps(row)


def read_definition(node_id: str, definition: bytes, added_by: str | None) -> NodeState:
    """Restore the node from its row."""
    row = orjson.loads(definition)
    refs = row.pop("refs", {})
    added = read_node({"id": node_id, "params": refs, **row}, f"the definition of {node_id}")
    timeout, retry = added.timeout_seconds or DEFAULT_TIMEOUT_SECONDS, added.retry or _USUAL_RETRY
    return state_of(added, added_by, added.queue or "", timeout, retry)


def state_of(added: AddedNode, added_by: str | None, queue: str, timeout: float, retry: RetryPolicy) -> NodeState:
    """Build the node with a specification of its own."""
    sources = awaited(added)
    if added.type == "gate":
        spec = GraphNode(added.node_id, NodeType.GATE, sources, (), (), _NO_RETRIES)
        return NodeState(added.node_id, spec, 0, is_added=True, added_by=added_by)
    task = _task_spec(added.handler, queue, timeout, retry)
    if added.refs:
        task = replace(task, params=Template(added.params))
    spec = GraphNode(added.node_id, NodeType.TASK, sources, (), (), retry, task=task)
    return NodeState(
        added.node_id,
        spec,
        retry.max_attempts,
        is_added=True,
        added_by=added_by,
        has_params=not added.refs,
        snowflake=added.task,
    )


@lru_cache(maxsize=1024)
def _task_spec(handler: str, queue: str, timeout_seconds: float, retry: RetryPolicy) -> TaskSpec:
    """Thousands of added nodes share a few specifications."""
    return TaskSpec(handler, queue, _NO_PARAMS, timeout_seconds, retry)
