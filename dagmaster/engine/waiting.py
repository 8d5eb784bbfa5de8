"""Nodes in which the engine itself waits: for a time, a signal, a decision, or the end of another job.

They run without a worker. `not_before` is when they wake up by themselves, or give up.
"""

from datetime import UTC, datetime, timedelta
from typing import Any

import orjson

from dagmaster.engine.messages import TimerKind
from dagmaster.engine.scope import encode, scope_of
from dagmaster.engine.state import NodeState
from dagmaster.engine.turn import Call, Turn
from dagmaster.errors import ExpressionFailed
from dagmaster.model.graph import ChildJobSpec, NodeType, WaitSpec
from dagmaster.model.states import EventStatus
from dagmaster.model.times import read_time
from dagmaster.model.workflow import MAX_WAIT_SECONDS

Signal = dict[str, Any]
WAITING = (NodeType.WAIT, NodeType.APPROVAL, NodeType.WORKFLOW)


def begin_wait(turn: Turn, node: NodeState) -> bytes | None:
    """Its output, if there is nothing to wait for."""
    spec = node.spec.wait
    assert spec is not None
    wakes_at = _wakes_at(turn, spec)
    turn.begin(node)
    if spec.signal is not None and (kept := _take_kept(turn, spec.signal)) is not None:
        return wait_output(turn, node, kept)
    if spec.signal is None and (wakes_at is None or wakes_at <= turn.now):
        return wait_output(turn, node, None)
    _wake_at(turn, node, wakes_at)
    return None


def wait_output(turn: Turn, node: NodeState, signal: Signal | None) -> bytes:
    began = node.started_at or turn.now
    shown = {key: signal[key] for key in ("name", "data", "actor")} if signal is not None else None
    return orjson.dumps({"waited_seconds": round((turn.now - began).total_seconds(), 3), "signal": shown})


def _wakes_at(turn: Turn, spec: WaitSpec) -> datetime | None:
    if spec.signal is not None:
        return _after(turn, spec.timeout_seconds)
    if spec.until is not None:
        return _time(spec.until.resolve(scope_of(turn)))
    assert spec.seconds is not None
    seconds = spec.seconds.resolve(scope_of(turn))
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= MAX_WAIT_SECONDS:
        raise ExpressionFailed(
            f"the seconds to wait must be a number from 0 to {MAX_WAIT_SECONDS}, not {seconds!r:.40}"
        )
    return _after(turn, seconds)


def _time(value: Any) -> datetime:
    try:
        return read_time(value if isinstance(value, str) else repr(value)).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise ExpressionFailed(f"the time to wait until: {error}") from error


def _after(turn: Turn, seconds: float | None) -> datetime | None:
    return None if seconds is None else turn.now + timedelta(seconds=seconds)


def _wake_at(turn: Turn, node: NodeState, at: datetime | None) -> None:
    node.not_before = at
    if at is not None:
        turn.arm(TimerKind.WAKE, at, node)


def _take_kept(turn: Turn, name: str) -> Signal | None:
    """The oldest signal of this name that nobody has waited for."""
    job = turn.job
    found = next((place for place, signal in enumerate(job.signals) if signal["name"] == name), None)
    if found is None:
        return None
    turn.job_touched = True
    return job.signals.pop(found)


def begin_approval(turn: Turn, node: NodeState) -> None:
    spec = node.spec.approval
    assert spec is not None
    message = spec.message.resolve(scope_of(turn))
    approvers = list(spec.approvers)
    node.params = encode({"message": message, "approvers": approvers}, f"the message of {node.node_id}")
    node.has_params = True
    turn.begin(node)
    _wake_at(turn, node, _after(turn, spec.timeout_seconds))
    asked: dict[str, Any] = {"message": str(message)[:500], "approvers": approvers, "until": node.not_before}
    turn.note("approval_requested", EventStatus.INFO, node, **asked)


def begin_call(turn: Turn, node: NodeState) -> None:
    """The child job is submitted when this is written, under the name of the attempt: as often as it takes, once."""
    spec = _child_job(node)
    node.params = _inputs(turn, node, spec)
    node.has_params = True
    turn.begin(node)
    _wake_at(turn, node, _after(turn, spec.timeout_seconds))
    _call(turn, node, node.params)


def take_up_waiting(turn: Turn, node: NodeState) -> None:
    """Another owner had it: the timer is armed again, and the child is submitted if that was not done.

    With the inputs that were written: here and now they might be others, or make no sense at all.
    """
    if node.not_before is not None:
        turn.arm(TimerKind.WAKE, node.not_before, node)
    if node.spec.type is NodeType.WORKFLOW:
        _call(turn, node, None)


def _child_job(node: NodeState) -> ChildJobSpec:
    assert node.spec.child_job is not None
    return node.spec.child_job


def _inputs(turn: Turn, node: NodeState, spec: ChildJobSpec) -> bytes:
    return encode(spec.inputs.resolve(scope_of(turn)), f"the inputs of {node.node_id}")


def _call(turn: Turn, node: NodeState, inputs: bytes | None) -> None:
    spec, task_id = _child_job(node), turn.job.task_id(node)
    turn.calls[task_id] = Call(node.node_id, task_id, spec.workflow_id, spec.workflow_hash, inputs)
