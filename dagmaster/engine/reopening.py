"""An operator has a node tried again; a failed job goes on where it stood."""

from datetime import timedelta

from dagmaster.engine.edges import is_dead, is_ready, make_ready
from dagmaster.engine.failing import policy_of, retry
from dagmaster.engine.messages import Message, RetryByHand, TimerKind
from dagmaster.engine.running import is_backing_off
from dagmaster.engine.state import NodeState, count_edge, is_live, is_settled
from dagmaster.engine.turn import Turn
from dagmaster.model.states import JOB_REOPENED, NODE_READY, NODE_REOPENED, EventStatus, JobStatus, NodeStatus


def can_reopen(turn: Turn, message: Message) -> bool:
    return turn.job.status is JobStatus.FAILED and isinstance(message, RetryByHand)


def retry_by_hand(turn: Turn, message: RetryByHand) -> None:
    if turn.job.status is JobStatus.FAILED:
        _reopen(turn, message)
        return
    wanted = turn.job.nodes.values() if message.node_id is None else [turn.job.nodes.get(message.node_id)]
    for node in wanted:
        if node is not None and node.status is NodeStatus.READY and is_backing_off(turn, node):
            _end_back_off(turn, node, message.actor)


def _end_back_off(turn: Turn, node: NodeState, actor: str | None) -> None:
    node.not_before = None
    if node.node_id not in turn.created:
        turn.touched[node.node_id] = node
    turn.note("node_retrying", EventStatus.WARNING, node, attempt=node.attempt, actor=actor, at_once=True)
    turn.ready.append(node)


def _reopen(turn: Turn, message: RetryByHand) -> None:
    """What failed or was withdrawn is tried again; what was skipped because of the failure waits anew."""
    job = turn.job
    job.completed_at = job.error = job.result = None
    turn.reopened = True
    failed = [node.node_id for node in job.nodes.values() if node.status is NodeStatus.FAILED]
    turn.move_job(JOB_REOPENED, actor=message.actor, wanted=message.node_id, failed_nodes=failed[:100])
    turn.arm(TimerKind.ZOMBIE, turn.now + timedelta(seconds=turn.rules.zombie_after_seconds))
    own = [job.nodes[node_id] for node_id in job.graph.nodes]
    for node in own:
        node.all_open, node.any_open = len(node.spec.all_of), len(node.spec.any_of)
        node.any_live = node.live = 0
    for node in own:  # In topological order: what leads to a node is decided before it.
        _reopen_node(turn, node)
        if is_settled(job, node):
            for target in node.spec.targets:
                count_edge(job.nodes[target], node, live=is_live(node, target))


def _reopen_node(turn: Turn, node: NodeState) -> None:
    if node.node_id in turn.job.fans:
        for child in list(turn.job.children(node.node_id)):
            _reopen_child(turn, child)
    if node.status is NodeStatus.FAILED:
        _retry(turn, node)
    elif node.status is NodeStatus.SKIPPED and not _is_bypassed(node):
        _unskip(turn, node)
        if is_ready(node):
            make_ready(turn, node)


def _reopen_child(turn: Turn, child: NodeState) -> None:
    if child.status is NodeStatus.FAILED:
        _retry(turn, child)
    elif child.status is NodeStatus.SKIPPED:
        _unskip(turn, child)
        turn.move_node(child, NODE_READY, dependencies=[child.parent])
        turn.ready.append(child)


def _is_bypassed(node: NodeState) -> bool:
    """Skipped by a branch that was not taken: the failure has nothing to do with it."""
    return bool(node.spec.all_of or node.spec.any_of) and is_dead(node)


def _unskip(turn: Turn, node: NodeState) -> None:
    node.completed_at = node.not_before = None  # The timer of its back-off went with its job.
    turn.move_node(node, NODE_REOPENED)


def _retry(turn: Turn, node: NodeState) -> None:
    """With all the retries of its policy, as if it were new."""
    node.max_retries = node.attempt + 1 + policy_of(node).max_attempts
    retry(turn, node, timedelta())
