"""Edges drive the job: when a node ends, each of its outgoing edges becomes live or dead.

A node is ready when its rule is met, and is skipped when every path to it is dead. Conditionals only choose which
edges live; joins, `any_of`, optional steps and nested branches need no further rule.
"""

from collections import deque
from datetime import datetime
from typing import Any

from dagmaster.engine import transitions
from dagmaster.engine.change_set import ChangeSet
from dagmaster.engine.state import NodeState, count_edge, is_live, is_settled, targets_of
from dagmaster.engine.values import Value
from dagmaster.model.states import NodeStatus

# A node may have very many sources; its timeline entry must stay readable.
SHOWN_SOURCES = 100


def complete(
    changes: ChangeSet,
    node: NodeState,
    output: Value | None,
    duration_ms: int | None = None,
    reported_at: datetime | None = None,
    **data: Any,
) -> None:
    """Accept the output and decide the edges that leave the node; `data` is for the timeline."""
    transitions.complete(changes, node, output, duration_ms, reported_at, **data)
    propagate(changes, node)


def propagate(changes: ChangeSet, ended: NodeState) -> None:
    """Apply the end of a node. The last child to end settles its fan-out's edges."""
    if ended.is_child:
        parent = changes.job.nodes[ended.parent or ""]
        if is_settled(changes.job, parent):
            settle(changes, parent)
        if not ended.followers:
            return
    if is_settled(changes.job, ended):
        settle(changes, ended)


def settle(changes: ChangeSet, ended: NodeState) -> None:
    """Decide the edges of an ended node, and of every node that is skipped because of it."""
    settled = deque([ended])
    failed = ended.status is NodeStatus.FAILED and not ended.spec.allow_failure
    reason = "step_before_failed" if failed else "conditional_branch_not_taken"
    while settled:
        source = settled.popleft()
        for target_id in targets_of(source):
            target = changes.job.nodes[target_id]
            count_edge(target, source, live=is_live(source, target_id))
            if target.status is not NodeStatus.PENDING:
                continue
            if is_ready(target):
                make_ready(changes, target)
            elif is_dead(target):
                transitions.skip(changes, target, reason)
                settled.append(target)


def is_ready(node: NodeState) -> bool:
    """Every edge of `all_of` is decided, one of `any_of` is live, and at least one edge is live."""
    if node.all_open or (node.spec.any_of and not node.any_live):
        return False
    return node.live > 0 or not node.spec.sources


def is_dead(node: NodeState) -> bool:
    """Every edge is decided and none is live, or none of `any_of` is live."""
    if node.all_open:
        return False
    if node.spec.any_of:
        return node.any_open == 0 and node.any_live == 0
    return node.live == 0


def is_bypassed(node: NodeState) -> bool:
    """Whether a skipped node was skipped by an untaken branch, not by the failure of its job."""
    return not node.is_child and bool(node.spec.sources) and is_dead(node)


def make_ready(changes: ChangeSet, node: NodeState) -> None:
    sources = node.spec.sources
    more = {"more": len(sources) - SHOWN_SOURCES} if len(sources) > SHOWN_SOURCES else {}
    transitions.ready(changes, node, list(sources[:SHOWN_SOURCES]), **more)
