"""Control of a job by an operator: pause and resume it, retry a node now, or reopen a failed job where it stopped."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from graphlib import TopologicalSorter

from dagmaster.engine import transitions
from dagmaster.engine.change_set import ChangeSet
from dagmaster.engine.edges import is_bypassed, is_ready, make_ready
from dagmaster.engine.failures import policy_of
from dagmaster.engine.job_end import seconds_allowed
from dagmaster.engine.messages import ManualRetry, Message, Pause, Resume, TimerKind
from dagmaster.engine.node_start import is_backing_off, resume_node, start
from dagmaster.engine.state import JobState, NodeState, count_edges, is_revoked
from dagmaster.model.finalizers import Phase
from dagmaster.model.states import JobStatus, NodeStatus

WAITING = (NodeStatus.READY, NodeStatus.DISPATCHED)


def pause(changes: ChangeSet, message: Pause) -> None:
    """A paused job starts nothing, and its waiting tasks keep their place in the queue."""
    if not changes.job.is_paused:
        transitions.pause_job(changes, message.actor, message.reason)


def resume(changes: ChangeSet, message: Resume) -> None:
    """Resume all waiting nodes; the time of the pause counts for no timeout."""
    job = changes.job
    if not job.is_paused:
        return
    transitions.resume_job(changes, message.actor)
    if job.status is JobStatus.PENDING:
        start(changes)
        return
    job.backlog.clear()
    for node_id in [name for name in job.postponed if job.nodes[name].status in WAITING]:
        del job.postponed[node_id]
    for fan in job.fans.values():
        fan.waiting.clear()
    for node in list(job.nodes.values()):
        # The timer of a running back-off is still armed; a second one would make the node wait for two slots.
        if node.status in WAITING and not is_backing_off(changes, node):
            resume_node(changes, node)


def can_reopen(changes: ChangeSet, message: Message) -> bool:
    return changes.job.status is JobStatus.FAILED and isinstance(message, ManualRetry)


def retry_manually(changes: ChangeSet, message: ManualRetry) -> None:
    if changes.job.status is JobStatus.FAILED:
        _reopen(changes, message)
        return
    nodes = changes.job.nodes.values() if message.node_id is None else [changes.job.nodes.get(message.node_id)]
    for node in nodes:
        if node is None or (message.only is not None and node.node_id not in message.only):
            continue
        if node.status is NodeStatus.READY and is_backing_off(changes, node):
            transitions.end_back_off(changes, node, message.actor)


@dataclass(slots=True)
class _Selection:
    """The nodes to retry. `resumed` are reopened nodes, `left` are nodes that stay as they are."""

    only: frozenset[str] | None
    resumed: set[str] = field(default_factory=set)
    left: set[str] = field(default_factory=set)

    def selects(self, node: NodeState) -> bool:
        return self.only is None or node.node_id in self.only

    def is_cut_off(self, node: NodeState) -> bool:
        return not self.left.isdisjoint(node.spec.sources)

    def follows(self, node: NodeState) -> bool:
        """Whether a skipped node waits again: one of its sources is resumed, and none is left out."""
        return self.only is None or (not self.is_cut_off(node) and not self.resumed.isdisjoint(node.spec.sources))

    def note(self, node: NodeState, *, is_resumed: bool) -> None:
        """A child counts for its fan-out too."""
        names = {node.node_id} if node.parent is None else {node.node_id, node.parent}
        (self.resumed if is_resumed else self.left).update(names)


def _reopen(changes: ChangeSet, message: ManualRetry) -> None:
    """Failed and revoked nodes are retried; nodes skipped because of the failure wait again."""
    job, selection = changes.job, _Selection(message.only)
    failed = [node.node_id for node in job.nodes.values() if node.status is NodeStatus.FAILED]
    selected = {} if message.only is None else {"only": sorted(message.only)[: transitions.MAX_LISTED]}
    transitions.reopen_job(
        changes,
        seconds_allowed(changes),
        actor=message.actor,
        wanted=message.node_id,
        failed_nodes=failed[: transitions.MAX_LISTED],
        **selected,
    )
    changes.arm(TimerKind.ZOMBIE, changes.now + timedelta(seconds=changes.rules.zombie_after_seconds))
    own = [job.nodes[node_id] for node_id in (*job.graph.nodes, *_added(job))]
    for node in own:
        node.open_edges()
    for node in own:  # In topological order: the sources of a node are decided before it.
        _reopen_node(changes, node, selection)
        count_edges(job, node)


def _added(job: JobState) -> Iterable[str]:
    """The added nodes in topological order. They come last: no node of the definition waits for them."""
    added = {node.node_id: node.spec.all_of for node in job.nodes.values() if node.is_added}
    inner = {node_id: [source for source in sources if source in added] for node_id, sources in added.items()}
    return TopologicalSorter(inner).static_order()


def _reopen_node(changes: ChangeSet, node: NodeState, selection: _Selection) -> None:
    if changes.job.phase_of(node) is not Phase.MAIN:
        _rerun_finalizer(changes, node)
        return
    for child in changes.job.children(node.node_id):
        _reopen_child(changes, child, selection)
        count_edges(changes.job, child)
    if _is_retryable(node):
        if is_resumed := selection.selects(node):
            _retry(changes, node)
    elif node.status is NodeStatus.SKIPPED and (selection.is_cut_off(node) or not is_bypassed(node)):
        if is_resumed := selection.follows(node):
            transitions.reopen(changes, node)
            if is_ready(node):
                make_ready(changes, node)
    else:
        return
    selection.note(node, is_resumed=is_resumed)


def _reopen_child(changes: ChangeSet, child: NodeState, selection: _Selection) -> None:
    if not _is_retryable(child) and child.status is not NodeStatus.SKIPPED:
        return
    selection.note(child, is_resumed=selection.selects(child))
    if not selection.selects(child):
        return
    if child.status is NodeStatus.FAILED:
        _retry(changes, child)
    else:
        transitions.reopen(changes, child)
        transitions.ready(changes, child, [child.parent])


def _is_retryable(node: NodeState) -> bool:
    """A node that was allowed to fail did not cause the failure."""
    return node.status is NodeStatus.FAILED and (not node.spec.allow_failure or is_revoked(node))


def _rerun_finalizer(changes: ChangeSet, node: NodeState) -> None:
    """The finalizers run again when the reopened job ends, whatever they did the first time.

    The nodes that they added are skipped until they add them again.
    """
    if node.status is NodeStatus.PENDING or (node.is_added and node.status is NodeStatus.SKIPPED):
        return
    transitions.rerun(changes, node, policy_of(node).max_attempts)
    if node.is_added:
        transitions.skip(changes, node, "job_reopened")


def _retry(changes: ChangeSet, node: NodeState) -> None:
    """Retry with the full number of retries, as a new node."""
    transitions.retry(changes, node, timedelta(), policy_of(node).max_attempts)
