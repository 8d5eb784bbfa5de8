"""Nodes in which the engine itself waits: for a time, a signal, a decision, or the end of a child job.

They run without a worker. `not_before` is when they wake up or time out.
"""

from datetime import UTC, datetime, timedelta
from typing import Any

import orjson

from dagmaster.engine import transitions
from dagmaster.engine.change_set import ChangeSet, NewChildJob
from dagmaster.engine.messages import TimerKind
from dagmaster.engine.scope import encode, scope_of
from dagmaster.engine.state import NodeState
from dagmaster.errors import ExpressionFailed
from dagmaster.model.graph import ChildJobSpec, NodeType, WaitSpec
from dagmaster.model.states import EventStatus
from dagmaster.model.times import read_time
from dagmaster.model.workflow import MAX_WAIT_SECONDS

Signal = dict[str, Any]
WAITING = (NodeType.WAIT, NodeType.APPROVAL, NodeType.WORKFLOW)


def begin_wait(changes: ChangeSet, node: NodeState) -> bytes | None:
    """Start the wait; returns the output if it is already over."""
    spec = node.spec.wait
    assert spec is not None
    wakes_at = _wakes_at(changes, spec)
    transitions.start_here(changes, node)
    if spec.signal is not None and (signal := _take_early_signal(changes, spec.signal)) is not None:
        return wait_output(changes, node, signal)
    if spec.signal is None and (wakes_at is None or wakes_at <= changes.now):
        return wait_output(changes, node, None)
    transitions.wake_at(changes, node, wakes_at)
    return None


def wait_output(changes: ChangeSet, node: NodeState, signal: Signal | None) -> bytes:
    began = node.started_at or changes.now
    summary = {key: signal[key] for key in ("name", "data", "actor")} if signal is not None else None
    return orjson.dumps({"waited_seconds": round((changes.now - began).total_seconds(), 3), "signal": summary})


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
    request: dict[str, Any] = {"message": str(message)[:500], "approvers": approvers, "until": node.not_before}
    changes.note("approval_requested", EventStatus.INFO, node, **request)


def begin_child_job(changes: ChangeSet, node: NodeState) -> None:
    """Submit the child with this change set. The attempt's id is its key, so that a repeat creates no second one."""
    spec = _child_job(node)
    node.params = _inputs(changes, node, spec)
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


def _inputs(changes: ChangeSet, node: NodeState, spec: ChildJobSpec) -> bytes:
    return encode(spec.inputs.resolve(scope_of(changes)), f"the inputs of {node.node_id}")


def _request_child(changes: ChangeSet, node: NodeState, inputs: bytes | None) -> None:
    spec, task_id = _child_job(node), changes.job.task_id(node)
    changes.new_child_jobs[task_id] = NewChildJob(node.node_id, task_id, spec.workflow_id, spec.workflow_hash, inputs)
