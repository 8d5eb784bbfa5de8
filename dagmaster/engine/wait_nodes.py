"""Nodes in which the engine itself waits: for a time, a signal, a decision, or the end of a child job.

They run without a worker. `not_before` is when they wake up or time out.
"""

from datetime import UTC, datetime, timedelta
from typing import Any

import orjson

from dagmaster.engine import transitions
from dagmaster.engine.change_set import ChangeSet, NewChildJob
from dagmaster.engine.edges import complete
from dagmaster.engine.failures import fail_attempt
from dagmaster.engine.job_end import ENDED, WAITING_TYPES
from dagmaster.engine.messages import ApprovalDecision, SignalSent, TaskCompleted, TaskFailed, TimerKind
from dagmaster.engine.scope import encode, scope_of
from dagmaster.engine.state import NodeState
from dagmaster.errors import ExpressionFailed
from dagmaster.model.durations import read_time
from dagmaster.model.graph import ChildJobSpec, NodeType, WaitSpec
from dagmaster.model.retry import TIMED_OUT
from dagmaster.model.states import EndedBy, EventStatus, NodeStatus
from dagmaster.model.workflow import MAX_WAIT_SECONDS

Signal = dict[str, Any]
MAX_KEPT_SIGNALS = 1000
SHOWN_NODES = 20
REJECTED = ("Rejected", "Exception")

# Start to wait.


def begin_wait(changes: ChangeSet, node: NodeState) -> None:
    """Start the wait, which may already be over."""
    spec = node.spec.wait
    assert spec is not None
    wakes_at = _wakes_at(changes, spec)
    transitions.start_here(changes, node)
    if spec.signal is not None and (signal := _take_early_signal(changes, spec.signal)) is not None:
        _end_wait(changes, node, signal)
    elif spec.signal is None and (wakes_at is None or wakes_at <= changes.now):
        _end_wait(changes, node, None)
    else:
        transitions.wake_at(changes, node, wakes_at)


def _end_wait(changes: ChangeSet, node: NodeState, signal: Signal | None) -> None:
    waited = changes.now - (node.started_at or changes.now)
    summary = {key: signal[key] for key in ("name", "data", "actor")} if signal is not None else None
    output = {"waited_seconds": round(waited.total_seconds(), 3), "signal": summary}
    complete(changes, node, orjson.dumps(output))


def _wakes_at(changes: ChangeSet, spec: WaitSpec) -> datetime | None:
    if spec.signal is not None:
        return _after(changes, spec.timeout_seconds)
    if spec.until is not None:
        return _time(spec.until.resolve(scope_of(changes)))
    assert spec.seconds is not None
    seconds = spec.seconds.resolve(scope_of(changes))
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= MAX_WAIT_SECONDS:
        raise ExpressionFailed(
            f"the seconds to wait must be a number from 0 to {MAX_WAIT_SECONDS}, not {seconds!r:.40}"
        )
    return _after(changes, seconds)


def _time(value: Any) -> datetime:
    try:
        return read_time(value if isinstance(value, str) else repr(value)).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise ExpressionFailed(f"the time to wait until: {error}") from error


def _after(changes: ChangeSet, seconds: float | None) -> datetime | None:
    return None if seconds is None else changes.now + timedelta(seconds=seconds)


def _take_early_signal(changes: ChangeSet, name: str) -> Signal | None:
    """The oldest signal of this name that arrived before a node waited for it."""
    job = changes.job
    index = next((position for position, signal in enumerate(job.signals) if signal["name"] == name), None)
    if index is None:
        return None
    changes.job_touched = True
    return job.signals.pop(index)


def begin_approval(changes: ChangeSet, node: NodeState) -> None:
    spec = node.spec.approval
    assert spec is not None
    message = spec.message.resolve(scope_of(changes))
    approvers = list(spec.approvers)
    node.params = encode({"message": message, "approvers": approvers}, f"the message of {node.node_id}")
    node.has_params = True
    transitions.start_here(changes, node)
    transitions.wake_at(changes, node, _after(changes, spec.timeout_seconds))
    request = {"message": str(message)[:500], "approvers": approvers, "until": node.not_before}
    changes.note("approval_requested", EventStatus.INFO, node, request)


def begin_child_job(changes: ChangeSet, node: NodeState) -> None:
    """Submit the child with this change set. The attempt's id is its key, so that a repeat creates no second one."""
    spec = _child_job(node)
    node.params = encode(spec.inputs.resolve(scope_of(changes)), f"the inputs of {node.node_id}")
    node.has_params = True
    transitions.start_here(changes, node)
    transitions.wake_at(changes, node, _after(changes, spec.timeout_seconds))
    _request_child(changes, node, node.params)


def resume_waiting(changes: ChangeSet, node: NodeState) -> None:
    """Arm the timer again after a change of owner, and submit the child if that has not happened.

    The stored inputs are used: evaluated again, they might differ.
    """
    if node.not_before is not None:
        changes.arm(TimerKind.WAKE, node.not_before, node)
    if node.spec.type is NodeType.WORKFLOW:
        _request_child(changes, node, None)


def _child_job(node: NodeState) -> ChildJobSpec:
    assert node.spec.child_job is not None
    return node.spec.child_job


def _request_child(changes: ChangeSet, node: NodeState, inputs: bytes | None) -> None:
    spec, task_id = _child_job(node), changes.job.task_id(node)
    changes.new_child_jobs[task_id] = NewChildJob(node.node_id, task_id, spec.workflow_id, spec.workflow_hash, inputs)


# Wake up: a due time, a signal, a decision, the end of a child job.


def wake(changes: ChangeSet, node: NodeState) -> None:
    """The timer is due: a wait for a time completes, any other wait times out."""
    if node.status is not NodeStatus.RUNNING or node.spec.type not in WAITING_TYPES:
        return
    if node.not_before is None or node.not_before > changes.now:
        return
    if node.spec.wait is not None and node.spec.wait.signal is None:
        _end_wait(changes, node, None)
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
    data = {"name": message.name, "actor": message.actor, "woke": names, "kept": is_kept}
    changes.note("signal_received", EventStatus.INFO, data=data)
    if is_kept:
        job.signals.append(signal)
        changes.job_touched = True
    elif not waiting:
        warning = f"the job already keeps {MAX_KEPT_SIGNALS} signals; this one is dropped"
        changes.note("job_warning", EventStatus.WARNING, data={"warning": warning})
    for node in waiting:
        _end_wait(changes, node, signal)


def ignore_signal(changes: ChangeSet, message: SignalSent) -> None:
    """The job ended before the signal arrived."""
    data: dict[str, Any] = {"name": message.name, "actor": message.actor, "woke": [], "kept": False, "reason": ENDED}
    changes.note("signal_received", EventStatus.WARNING, data=data)


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
    decided = {"approved": message.approved, "by": message.actor, "comment": message.comment}
    changes.note("approval_decided", status, node, decided)
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
