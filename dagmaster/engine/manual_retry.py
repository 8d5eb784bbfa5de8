"""An operator has a node tried again; a failed job goes on where it stood."""

from collections.abc import Iterable
from datetime import timedelta
from graphlib import TopologicalSorter

from dagmaster.engine import transitions
from dagmaster.engine.change_set import ChangeSet
from dagmaster.engine.edges import is_dead, is_ready, make_ready
from dagmaster.engine.failures import policy_of
from dagmaster.engine.job_end import seconds_allowed
from dagmaster.engine.messages import ManualRetry, Message, TimerKind
from dagmaster.engine.node_start import is_backing_off
from dagmaster.engine.state import JobState, NodeState, count_edge, is_live, is_revoked, is_settled, targets_of
from dagmaster.model.finalizers import Phase
from dagmaster.model.states import JobStatus, NodeStatus


def can_reopen(changes: ChangeSet, message: Message) -> bool:
    return changes.job.status is JobStatus.FAILED and isinstance(message, ManualRetry)


def retry_manually(changes: ChangeSet, message: ManualRetry) -> None:
    if changes.job.status is JobStatus.FAILED:
        _reopen(changes, message)
        return
    nodes = changes.job.nodes.values() if message.node_id is None else [changes.job.nodes.get(message.node_id)]
    for node in nodes:
        if node is not None and node.status is NodeStatus.READY and is_backing_off(changes, node):
            transitions.end_back_off(changes, node, message.actor)


def _reopen(changes: ChangeSet, message: ManualRetry) -> None:
    """What failed or was revoked is tried again; what was skipped because of the failure waits again."""
    job = changes.job
    failed = [node.node_id for node in job.nodes.values() if node.status is NodeStatus.FAILED]
    transitions.reopen_job(
        changes,
        seconds_allowed(changes),
        actor=message.actor,
        wanted=message.node_id,
        failed_nodes=failed[: transitions.MAX_LISTED],
    )
    changes.arm(TimerKind.ZOMBIE, changes.now + timedelta(seconds=changes.rules.zombie_after_seconds))
    own = [job.nodes[node_id] for node_id in (*job.graph.nodes, *_added(job))]
    for node in own:
        node.all_open, node.any_open = len(node.spec.all_of), len(node.spec.any_of)
        node.any_live = node.live = 0
    for node in own:  # In topological order: what leads to a node is decided before it.
        _reopen_node(changes, node)
        _count_edges(job, node)


def _added(job: JobState) -> Iterable[str]:
    """In topological order, behind those of the definition, which never wait for them."""
    added = {node.node_id: node.spec.all_of for node in job.nodes.values() if node.is_added}
    inner = {node_id: [source for source in sources if source in added] for node_id, sources in added.items()}
    return TopologicalSorter(inner).static_order()


def _count_edges(job: JobState, node: NodeState) -> None:
    if is_settled(job, node):
        for target in targets_of(node):
            count_edge(job.nodes[target], node, live=is_live(node, target))


def _reopen_node(changes: ChangeSet, node: NodeState) -> None:
    if changes.job.phase_of(node) is not Phase.MAIN:
        _run_last_again(changes, node)
        return
    if node.node_id in changes.job.fans:
        for child in list(changes.job.children(node.node_id)):
            _reopen_child(changes, child)
            _count_edges(changes.job, child)
    if _is_to_be_tried(node):
        _retry(changes, node)
    elif node.status is NodeStatus.SKIPPED and not _is_bypassed(node):
        transitions.reopen(changes, node)
        if is_ready(node):
            make_ready(changes, node)


def _reopen_child(changes: ChangeSet, child: NodeState) -> None:
    if _is_to_be_tried(child):
        _retry(changes, child)
    elif child.status is NodeStatus.SKIPPED:
        transitions.reopen(changes, child)
        transitions.ready(changes, child, [child.parent])


def _is_to_be_tried(node: NodeState) -> bool:
    """What was allowed to fail has nothing to do with the failure."""
    return node.status is NodeStatus.FAILED and (not node.spec.allow_failure or is_revoked(node))


def _run_last_again(changes: ChangeSet, node: NodeState) -> None:
    """The job will end once more, and its last chains run then, whatever they did the first time.

    What they have added is set aside: it is for them to add it again.
    """
    if node.status is NodeStatus.PENDING or (node.is_added and node.status is NodeStatus.SKIPPED):
        return
    transitions.rerun(changes, node, policy_of(node).max_attempts)
    if node.is_added:
        transitions.skip(changes, node, "job_reopened")


def _is_bypassed(node: NodeState) -> bool:
    """Skipped by a branch that was not taken: the failure has nothing to do with it."""
    return bool(node.spec.all_of or node.spec.any_of) and is_dead(node)


def _retry(changes: ChangeSet, node: NodeState) -> None:
    """With all the retries of its policy, as if it were new."""
    transitions.retry(changes, node, timedelta(), policy_of(node).max_attempts)
