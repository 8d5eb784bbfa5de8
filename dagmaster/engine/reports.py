"""Reports of workers. A report counts only if its task is the node's current one."""

from dagmaster.engine import transitions
from dagmaster.engine.change_set import MAX_ERROR_LENGTH, ChangeSet, Result
from dagmaster.engine.edges import complete
from dagmaster.engine.failures import fail_attempt
from dagmaster.engine.messages import Report, TaskCheckpoint, TaskCompleted, TaskFailed, TaskLost, TaskStarted
from dagmaster.engine.node_start import arm_timeout
from dagmaster.engine.results import await_result, find_result_source
from dagmaster.engine.state import Checkpoint, NodeState, is_executed, is_revoked
from dagmaster.engine.values import size_of
from dagmaster.engine.wait_nodes import find_caller
from dagmaster.model.states import NODE_IN_FLIGHT, EndedBy, EventStatus, NodeStatus, TaskStatus


def accept_started(changes: ChangeSet, message: TaskStarted) -> None:
    node = find_current(changes, message.node_id, message.task_id)
    if node is not None and node.status is NodeStatus.DISPATCHED:
        start_task(changes, node, message.worker_id)


def start_task(changes: ChangeSet, node: NodeState, worker_id: str | None) -> None:
    transitions.start(changes, node, worker_id)
    arm_timeout(changes, node)


def accept_completed(changes: ChangeSet, message: TaskCompleted) -> None:
    node = _open(changes, message)
    if node is None:
        return
    if is_executed(node):
        changes.close_task(node)
    if isinstance(message.output, bytes) and (other := find_result_source(message.output)) is not None:
        await_result(changes, node, other, message.duration_ms)
        return
    complete(changes, node, message.output, message.duration_ms, message.at)


def accept_failed(changes: ChangeSet, message: TaskFailed) -> None:
    node = _open(changes, message)
    if node is None:
        return
    fail_attempt(
        changes,
        node,
        message.error,
        permanent=message.permanent,
        delay_seconds=message.retry_after_seconds,
        error_types=message.error_types,
        ended_by=_ended_by(message),
        duration_ms=message.duration_ms,
        reported_at=message.at,
        worker_id=message.worker_id,
    )


def accept_lost(changes: ChangeSet, message: TaskLost) -> None:
    """Retry on another worker at once. The attempt counts, unless the worker gave the task back."""
    node = find_current(changes, message.node_id, message.task_id)
    if node is None or not _is_in_flight(node):
        return
    transitions.count_loss(node, given_back=message.given_back)
    error = f"worker {message.worker_id} {'gave it back' if message.given_back else 'was lost'}"
    limit = changes.rules.max_worker_deaths
    is_poison = not message.given_back and limit is not None and node.times_lost >= limit
    if is_poison:
        error = f"{error}: {node.times_lost} workers in a row died while they ran this task, so it is not retried"
    fail_attempt(
        changes,
        node,
        error,
        permanent=is_poison,
        delay_seconds=0,
        ended_by=EndedBy.GIVEN_BACK if message.given_back else EndedBy.LOST,
        status=EventStatus.FAILURE if is_poison else EventStatus.WARNING,
        worker_id=message.worker_id,
    )


def accept_checkpoint(changes: ChangeSet, message: TaskCheckpoint) -> None:
    node = find_current(changes, message.node_id, message.task_id)
    if node is None or not _is_in_flight(node):
        return
    changes.bytes += size_of(message.data) if isinstance(message.data, bytes) else 0
    node.checkpoint = Checkpoint(message.phase, message.data, message.at)
    changes.touch(node)
    data = {"phase": message.phase, "worker_id": message.worker_id, **message.details}
    changes.note("node_checkpoint", EventStatus.INFO, node, data, source_app="worker", checkpoint_name=message.phase)


def ignore(changes: ChangeSet, message: Report, reason: str) -> None:
    """Store the report and note it in the timeline; the job does not change."""
    if isinstance(message, TaskLost) or not _existed(changes, message):
        return
    _store(changes, message)
    data = {"reason": reason, "reported_task_id": message.task_id, "worker_id": message.worker_id}
    changes.note("result_ignored", EventStatus.WARNING, changes.job.nodes.get(message.node_id), data)


def _existed(changes: ChangeSet, message: Report) -> bool:
    """Whether the attempt existed. A report for a future attempt would take the place of its result."""
    node = changes.job.nodes.get(message.node_id)
    prefix, _, attempt = message.task_id.rpartition("_")
    if node is None or not is_executed(node) or prefix != f"{changes.job.job_id}_{node.node_id}":
        return False
    return attempt.isdecimal() and int(attempt) <= node.attempt


def _open(changes: ChangeSet, message: TaskCompleted | TaskFailed) -> NodeState | None:
    """The running node that waits for this report. A report for a dispatched task proves that it started."""
    node = find_current(changes, message.node_id, message.task_id) or find_caller(changes, message)
    if node is None:
        ignore(changes, message, "the attempt was superseded")
        return None
    if not _is_in_flight(node):
        if node.status is NodeStatus.FAILED and not _is_known(node, message):
            ignore(changes, message, "the attempt was revoked" if is_revoked(node) else "the attempt was given up")
        return None  # A repeated report: the first one counted.
    _store(changes, message)
    if node.status is NodeStatus.DISPATCHED:
        start_task(changes, node, message.worker_id)
    return node


def _is_known(node: NodeState, message: TaskCompleted | TaskFailed) -> bool:
    """Whether this is the report that ended the attempt."""
    if not isinstance(message, TaskFailed) or node.ended_by is not _ended_by(message):
        return False
    return message.error[:MAX_ERROR_LENGTH] == node.error


def _ended_by(message: TaskCompleted | TaskFailed) -> EndedBy:
    if isinstance(message, TaskCompleted):
        return EndedBy.RESULT
    return EndedBy.TIMEOUT if message.timed_out else EndedBy.FAILURE


def _is_in_flight(node: NodeState) -> bool:
    """A node that waits for another node's result is not: its own task is done."""
    return node.status in NODE_IN_FLIGHT and node.result_of is None


def find_current(changes: ChangeSet, node_id: str, task_id: str) -> NodeState | None:
    node = changes.job.nodes.get(node_id)
    is_current = node is not None and is_executed(node) and task_id == changes.job.task_id(node)
    return node if is_current else None


def _store(changes: ChangeSet, message: TaskCompleted | TaskFailed) -> None:
    """Only the first report of an attempt is stored."""
    failure = message if isinstance(message, TaskFailed) else None
    result = Result(
        message.task_id,
        changes.job.job_id,
        message.node_id,
        TaskStatus.FAILED if failure else TaskStatus.COMPLETED,
        message.worker_id,
        message.output if isinstance(message, TaskCompleted) else None,
        failure.error if failure else None,
        message.duration_ms,
        message.at,
        failure.error_types[0] if failure and failure.error_types else None,
        message.details or None,
        _ended_by(message),
    )
    changes.results.setdefault(message.task_id, result)
