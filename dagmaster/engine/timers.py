"""Timers: due retries, timeouts, jobs without progress."""

from datetime import datetime, timedelta
from typing import assert_never

from dagmaster.engine.change_set import ChangeSet
from dagmaster.engine.failures import fail_attempt
from dagmaster.engine.job_end import WAITING_TYPES, fail_overdue, fail_stalled
from dagmaster.engine.messages import TimerDue, TimerKind
from dagmaster.engine.node_start import dispatch_deadline, dispatch_timeout, timeout
from dagmaster.engine.state import NodeState, is_executed
from dagmaster.engine.wait_nodes import wake
from dagmaster.model.retry import TIMED_OUT
from dagmaster.model.states import EndedBy, NodeStatus


def fire(changes: ChangeSet, timer: TimerDue) -> None:
    """Apply a due timer. Timers are never cancelled: one of a past attempt does nothing."""
    if timer.kind is TimerKind.ZOMBIE:
        end_zombie(changes)
        return
    if timer.kind is TimerKind.DEADLINE:
        fail_overdue(changes)
        return
    node = changes.job.nodes.get(timer.node_id)
    if node is None or node.attempt != timer.attempt:
        return
    match timer.kind:
        case TimerKind.RETRY:
            if node.status is NodeStatus.READY and not _is_resumed(changes, node):
                changes.ready.append(node)
        case TimerKind.DISPATCH:
            if node.status is NodeStatus.DISPATCHED and not changes.job.is_paused:
                _time_out_dispatch(changes, node)
        case TimerKind.TIMEOUT:
            if node.status is NodeStatus.RUNNING and node.result_of is None:
                error = f"timed out after {node.task.timeout_seconds:g} s"
                fail_attempt(changes, node, error, error_types=TIMED_OUT, ended_by=EndedBy.TIMEOUT, timeout="execution")
        case TimerKind.WAKE:
            wake(changes, node)
        case _:
            assert_never(timer.kind)


def _is_resumed(changes: ChangeSet, node: NodeState) -> bool:
    """By a manual retry, or with the job at this moment. Resumed twice, the node would wait for two slots."""
    return node.not_before is None or changes.job.resumed_at == changes.now


def _time_out_dispatch(changes: ChangeSet, node: NodeState) -> None:
    if changes.now < dispatch_deadline(changes, node):
        return  # Armed before a pause, which has armed another.
    waited = dispatch_timeout(changes, node).total_seconds()
    error = f"no worker took it from queue {node.task_queue!r} within {waited:g} s"
    fail_attempt(changes, node, error, error_types=TIMED_OUT, ended_by=EndedBy.TIMEOUT, timeout="dispatch")


def end_zombie(changes: ChangeSet) -> None:
    """Fail a job that has made no progress for too long and waits for nothing."""
    job, after = changes.job, timedelta(seconds=changes.rules.zombie_after_seconds)
    due = _latest_deadline(changes)
    until = max(job.last_progress_at or job.created_at, due or job.created_at) + after
    if changes.now >= until and due is not None and job.spared_for != due:
        # The timer of that deadline may be due at this moment, and be applied after this one.
        job.spared_for, until = due, changes.now + after
    if changes.now < until:
        changes.arm(TimerKind.ZOMBIE, until)
        return
    hours = after.total_seconds() / 3600
    fail_stalled(changes, f"Timeout: no progress for {hours:g} hours")
    if not changes.is_over:  # The finalizers may stall, too.
        changes.arm(TimerKind.ZOMBIE, changes.now + after)


def _latest_deadline(changes: ChangeSet) -> datetime | None:
    """When the last of the job's timers is due, even if late; now, if the job is paused or backpressured."""
    job = changes.job
    if job.is_paused or job.backlog or job.postponed:
        return changes.now
    return max((at for node in job.nodes.values() if (at := _deadline(changes, node))), default=None)


def _deadline(changes: ChangeSet, node: NodeState) -> datetime | None:
    """The time until which the node may stay in its state. A long back-off or task is no reason to fail the job."""
    match node.status:
        case NodeStatus.READY:
            return node.not_before
        case NodeStatus.DISPATCHED:
            return dispatch_deadline(changes, node)
        case NodeStatus.RUNNING if node.result_of is None and is_executed(node) and node.started_at is not None:
            return node.started_at + timeout(changes, node)
        case NodeStatus.RUNNING if node.spec.type in WAITING_TYPES:  # Without a timeout it may wait forever.
            return node.not_before or changes.now
        case _:
            return None
