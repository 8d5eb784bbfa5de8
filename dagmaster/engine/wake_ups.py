"""The ends of a wait: a due time, a signal, a decision, the end of a child job."""

from typing import Any

from dagmaster.engine.change_set import ChangeSet
from dagmaster.engine.failures import fail_attempt
from dagmaster.engine.job_end import ENDED
from dagmaster.engine.messages import ApprovalDecision, SignalSent, TaskCompleted, TaskFailed
from dagmaster.engine.node_start import complete
from dagmaster.engine.scope import encode
from dagmaster.engine.state import NodeState
from dagmaster.engine.wait_nodes import WAITING, wait_output
from dagmaster.model.graph import NodeType
from dagmaster.model.retry import TIMED_OUT
from dagmaster.model.states import EndedBy, EventStatus, NodeStatus

MAX_KEPT_SIGNALS = 1000
SHOWN_NODES = 20
REJECTED = ("Rejected", "Exception")


def wake(changes: ChangeSet, node: NodeState) -> None:
    """The timer is due: a wait for a time completes, any other wait times out."""
    if node.status is not NodeStatus.RUNNING or node.spec.type not in WAITING:
        return
    if node.not_before is None or node.not_before > changes.now:
        return
    if node.spec.wait is not None and node.spec.wait.signal is None:
        complete(changes, node, wait_output(changes, node, None))
        return
    error = f"timed out: {_missed_event(node)} within {_timeout_seconds(node):g} s"
    fail_attempt(changes, node, error, error_types=TIMED_OUT, ended_by=EndedBy.TIMEOUT, timeout="wait")


def _missed_event(node: NodeState) -> str:
    if node.spec.wait is not None:
        return f"signal {node.spec.wait.signal!r} did not arrive"
    return "nobody decided" if node.spec.approval is not None else "its child job did not end"


def _timeout_seconds(node: NodeState) -> float:
    spec = node.spec.wait or node.spec.approval or node.spec.child_job
    return spec.timeout_seconds or 0.0 if spec is not None else 0.0


def accept_signal(changes: ChangeSet, message: SignalSent) -> None:
    """Wake all nodes that wait for the signal; if none does, keep it for the first that will."""
    job = changes.job
    # Only nodes of the definition wait for signals.
    waiting = [job.nodes[node_id] for node_id in job.graph.nodes if _waits_for(job.nodes[node_id], message.name)]
    signal = {"name": message.name, "data": message.data, "actor": message.actor, "at": message.at.isoformat()}
    is_kept = not waiting and len(job.signals) < MAX_KEPT_SIGNALS
    names = [node.node_id for node in waiting[:SHOWN_NODES]]
    changes.note("signal_received", EventStatus.INFO, name=message.name, actor=message.actor, woke=names, kept=is_kept)
    if is_kept:
        job.signals.append(signal)
        changes.job_touched = True
    elif not waiting:
        changes.note(
            "job_warning",
            EventStatus.WARNING,
            warning=f"the job already keeps {MAX_KEPT_SIGNALS} signals; this one is dropped",
        )
    for node in waiting:
        complete(changes, node, wait_output(changes, node, signal))


def ignore_signal(changes: ChangeSet, message: SignalSent) -> None:
    """The job ended before the signal arrived."""
    data: dict[str, Any] = {"name": message.name, "actor": message.actor, "woke": [], "kept": False, "reason": ENDED}
    changes.note("signal_received", EventStatus.WARNING, **data)


def _waits_for(node: NodeState, name: str) -> bool:
    return node.status is NodeStatus.RUNNING and node.spec.wait is not None and node.spec.wait.signal == name


def accept_decision(changes: ChangeSet, message: ApprovalDecision) -> None:
    """The first decision counts; a decision for a past attempt changes nothing."""
    node = changes.job.nodes.get(message.node_id)
    if node is None or node.spec.type is not NodeType.APPROVAL or node.status is not NodeStatus.RUNNING:
        return
    if changes.job.task_id(node) != message.task_id:
        return
    status = EventStatus.SUCCESS if message.approved else EventStatus.WARNING
    decided: dict[str, Any] = {"approved": message.approved, "by": message.actor, "comment": message.comment}
    changes.note("approval_decided", status, node, **decided)
    if message.approved:
        complete(changes, node, encode({**decided, "at": message.at}, "the decision"))
        return
    reason = f": {message.comment}" if message.comment else ""
    error = f"rejected by {message.actor or 'somebody'}{reason}"
    fail_attempt(changes, node, error, permanent=True, error_types=REJECTED)


def find_caller(changes: ChangeSet, message: TaskCompleted | TaskFailed) -> NodeState | None:
    """The node whose child job has ended. Only the child reports its end: workers' reports do not count."""
    node = changes.job.nodes.get(message.node_id)
    if node is None or node.spec.type is not NodeType.WORKFLOW or message.worker_id is not None:
        return None
    return node if changes.job.task_id(node) == message.task_id else None
