"""Tasks that return the result of a node that they added."""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

import orjson

from dagmaster.engine import transitions
from dagmaster.engine.change_set import ChangeSet
from dagmaster.engine.edges import complete
from dagmaster.engine.failures import fail_attempt, fail_with
from dagmaster.engine.state import JobState, NodeState, is_settled
from dagmaster.engine.values import StoredValue, Value
from dagmaster.model.added_nodes import RESULT_OF
from dagmaster.model.states import NODE_SUCCESSFUL, NodeStatus

REFUSED = ("Invalid", "dagmaster.errors.Invalid", "Exception")
# The longest output that may name a node.
MAX_REFERENCE_LENGTH = 256
NO_EDGES: Mapping[str, Sequence[str]] = MappingProxyType({})


def find_result_source(output: bytes) -> str | None:
    """The node whose result the output refers to, or None for an ordinary output."""
    if len(output) > MAX_REFERENCE_LENGTH or RESULT_OF.encode() not in output:
        return None
    value = orjson.loads(output)
    if not isinstance(value, dict) or len(value) != 1:
        return None
    name = value.get(RESULT_OF)
    return name if isinstance(name, str) else None


def await_result(changes: ChangeSet, node: NodeState, name: str, duration_ms: int | None) -> None:
    """The task is done; the node stays running, without worker and timeout, until the other node completes."""
    job, other = changes.job, changes.job.nodes.get(name)
    if other is None or not other.is_added:
        _refuse(changes, node, f"its result is that of {name!r}, which was not added to this job")
    elif waits_for(job, name, node.node_id):
        _refuse(changes, node, f"its result is that of {name}, which waits for it")
    elif other.status is NodeStatus.COMPLETED:
        complete(changes, node, _output_of(other), duration_ms)
    elif other.status is NodeStatus.SKIPPED:
        _refuse(changes, node, f"its result is that of {name}, which was skipped")
    elif other.status is NodeStatus.FAILED:
        fail_with(changes, node, other)
    else:
        transitions.await_result(changes, node, name)


def _output_of(other: NodeState) -> Value | None:
    """A large output is copied in the database, never loaded."""
    return other.output.located(other.node_id) if isinstance(other.output, StoredValue) else other.output


def _refuse(changes: ChangeSet, node: NodeState, error: str) -> None:
    fail_attempt(changes, node, error, permanent=True, error_types=REFUSED)


def pass_results(changes: ChangeSet) -> None:
    """Pass the output of completed nodes to the nodes that wait for it, transitively."""
    while changes.awaited_results and not changes.is_over:
        other = changes.awaited_results.popleft()
        if other.status not in NODE_SUCCESSFUL:
            continue  # Reopened in the same change set.
        for node_id in changes.job.awaited.pop(other.node_id, ()):
            node = changes.job.nodes[node_id]
            if node.result_of != other.node_id:
                continue
            if other.status is NodeStatus.COMPLETED:
                complete(changes, node, _output_of(other))
            else:
                _refuse(changes, node, f"its result is that of {other.node_id}, which was skipped")
    changes.awaited_results.clear()


def waits_for(job: JobState, node_id: str, target: str, planned: Mapping[str, Sequence[str]] = NO_EDGES) -> bool:
    """Whether a node cannot end before `target` does; `planned` are edges that are not in the job yet."""
    seen, stack = {node_id}, [node_id]
    while stack:
        name = stack.pop()
        if name == target:
            return True
        for blocker in (*planned.get(name, ()), *_blockers(job, name)):
            if blocker not in seen:
                seen.add(blocker)
                stack.append(blocker)
    return False


def _blockers(job: JobState, node_id: str) -> Iterator[str]:
    """The nodes that must end first: sources, children of a fan-out, the node whose result it returns."""
    node = job.nodes.get(node_id)
    if node is None or is_settled(job, node):
        return
    if node.result_of is not None:
        yield node.result_of
    yield from (child.node_id for child in job.children(node_id))
    if not node.is_child:
        yield from node.spec.sources
