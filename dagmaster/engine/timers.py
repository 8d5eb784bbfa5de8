"""Time has passed: retries that are due, tasks that took too long, jobs that no longer move."""

from datetime import datetime, timedelta
from typing import assert_never

from dagmaster.engine.ending import end_late, give_up
from dagmaster.engine.failing import fail_attempt
from dagmaster.engine.messages import TimerDue, TimerKind
from dagmaster.engine.running import dispatch_deadline, dispatch_timeout, timeout
from dagmaster.engine.state import NodeState, is_executed
from dagmaster.engine.turn import Turn
from dagmaster.engine.waiting import WAITING
from dagmaster.engine.waking import wake
from dagmaster.model.retry import TIMED_OUT
from dagmaster.model.states import EndedBy, NodeStatus


def fire(turn: Turn, timer: TimerDue) -> None:
    """A timer of an attempt that is over does nothing: timers are never cancelled, only outlived."""
    if timer.kind is TimerKind.ZOMBIE:
        end_zombie(turn)
        return
    if timer.kind is TimerKind.DEADLINE:
        end_late(turn)
        return
    node = turn.job.nodes.get(timer.node_id)
    if node is None or node.attempt != timer.attempt:
        return
    match timer.kind:
        case TimerKind.RETRY:
            if node.status is NodeStatus.READY and not _is_taken_up(turn, node):
                turn.ready.append(node)
        case TimerKind.DISPATCH:
            if node.status is NodeStatus.DISPATCHED and not turn.job.is_paused:
                _time_out_dispatch(turn, node)
        case TimerKind.TIMEOUT:
            if node.status is NodeStatus.RUNNING and node.result_of is None:
                error = f"timed out after {node.task.timeout_seconds:g} s"
                fail_attempt(turn, node, error, error_types=TIMED_OUT, ended_by=EndedBy.TIMEOUT, timeout="execution")
        case TimerKind.WAKE:
            wake(turn, node)
        case _:
            assert_never(timer.kind)


def _is_taken_up(turn: Turn, node: NodeState) -> bool:
    """By hand, or when the job went on in this very moment: twice, it would wait for two places."""
    return node.not_before is None or turn.job.resumed_at == turn.now


def _time_out_dispatch(turn: Turn, node: NodeState) -> None:
    if turn.now < dispatch_deadline(turn, node):
        return  # Armed before a pause; another one is armed since.
    waited = dispatch_timeout(turn, node).total_seconds()
    error = f"no worker took it from queue {node.task_queue!r} within {waited:g} s"
    fail_attempt(turn, node, error, error_types=TIMED_OUT, ended_by=EndedBy.TIMEOUT, timeout="dispatch")


def end_zombie(turn: Turn) -> None:
    """A job that has not moved for so long, and waits for nothing, will not move any more (RT-15)."""
    job, after = turn.job, timedelta(seconds=turn.rules.zombie_after_seconds)
    due = _latest_deadline(turn)
    until = max(job.last_progress_at or job.created_at, due or job.created_at) + after
    if turn.now >= until and due is not None and job.spared_for != due:
        # The timer of that deadline may be due in this very moment, and come after this one.
        job.spared_for, until = due, turn.now + after
    if turn.now < until:
        turn.arm(TimerKind.ZOMBIE, until)
        return
    hours = after.total_seconds() / 3600
    give_up(turn, f"Timeout: no progress for {hours:g} hours")
    if not turn.is_over:  # The chains that run last may stand still, too.
        turn.arm(TimerKind.ZOMBIE, turn.now + after)


def _latest_deadline(turn: Turn) -> datetime | None:
    """When the last of its timers is due, also one that is late; now, if it stands because somebody wants it so."""
    job = turn.job
    if job.is_paused or job.held or job.postponed:
        return turn.now
    return max((at for node in job.nodes.values() if (at := _deadline(turn, node))), default=None)


def _deadline(turn: Turn, node: NodeState) -> datetime | None:
    """Until when a node may stand where it is: a long back-off or a long task is no reason to give up the job."""
    match node.status:
        case NodeStatus.READY:
            return node.not_before
        case NodeStatus.DISPATCHED:
            return dispatch_deadline(turn, node)
        case NodeStatus.RUNNING if node.result_of is None and is_executed(node) and node.started_at is not None:
            return node.started_at + timeout(turn, node)
        case NodeStatus.RUNNING if node.spec.type in WAITING:  # Without a deadline, for as long as it takes.
            return node.not_before or turn.now
        case _:
            return None
