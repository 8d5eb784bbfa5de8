"""The transitions of nodes and jobs: each sets the status and its fields, and records the event.

No other module assigns these fields.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import orjson

from dagmaster.engine.change_set import MAX_ERROR_LENGTH, ChangeSet, Dispatch
from dagmaster.engine.messages import TimerKind
from dagmaster.engine.state import NodeState, is_executed
from dagmaster.engine.values import JobResult, StoredValue, Value
from dagmaster.errors import IllegalMove
from dagmaster.model import states
from dagmaster.model.graph import NodeType
from dagmaster.model.states import EndedBy, EventStatus, JobEndedBy, JobStatus, Move, NodeStatus

# The timeline summarises an output; decoding a larger one would cost too much.
MAX_SUMMARISED_BYTES = 65_536
MAX_KEYS = 50
MAX_LISTED = 100

# Nodes.


def ready(changes: ChangeSet, node: NodeState, dependencies: Sequence[str | None], **data: Any) -> None:
    """The sources have ended; the node starts in this change set unless it is paused or backpressured."""
    _move(changes, node, states.NODE_READY, {"dependencies": dependencies, **data})
    changes.ready.append(node)


def dispatch(changes: ChangeSet, node: NodeState, queue: str, handler: str) -> None:
    """Put the node's task on the queue."""
    node.not_before = None
    node.dispatched_at = changes.now
    _move(changes, node, states.NODE_DISPATCHED, {"queue": queue, "handler": handler})
    task_id = changes.job.task_id(node)
    changes.dispatches[task_id] = Dispatch(node, task_id, node.attempt, changes.now)


def start(changes: ChangeSet, node: NodeState, worker_id: str | None) -> None:
    """A worker runs the task."""
    node.started_at = changes.now
    _move(changes, node, states.NODE_STARTED, {"worker_id": worker_id}, source_app="worker")


def start_here(changes: ChangeSet, node: NodeState) -> None:
    """The engine executes this node itself."""
    node.dispatched_at = node.started_at = changes.now
    node.not_before = None
    _move(changes, node, states.NODE_DISPATCHED)
    _move(changes, node, states.NODE_STARTED)


def wake_at(changes: ChangeSet, node: NodeState, at: datetime | None) -> None:
    """A running node waits, until `at` at most."""
    node.not_before = at
    if at is not None:
        changes.arm(TimerKind.WAKE, at, node)


def await_result(changes: ChangeSet, node: NodeState, other: str) -> None:
    """The node stays running, without worker and timeout, until the other node completes."""
    node.result_of = other
    changes.job.awaited.setdefault(other, []).append(node.node_id)
    changes.touch(node)


def complete(
    changes: ChangeSet,
    node: NodeState,
    output: Value | None,
    duration_ms: int | None = None,
    reported_at: datetime | None = None,
    **data: Any,
) -> None:
    """Without `reported_at` it ends now: no worker has measured its duration."""
    node.output = output
    node.not_before = node.result_of = None
    if isinstance(output, StoredValue):
        changes.job.has_stored = True
    elif output is not None:
        changes.bytes += len(output)
    node.completed_at = changes.now if reported_at is None else _measure(changes, node, reported_at, duration_ms)
    if duration_ms is None and node.started_at is not None:
        duration_ms = round((node.completed_at - node.started_at).total_seconds() * 1000)
    _move(changes, node, states.NODE_COMPLETED, {"output_keys": _keys(output), **data}, duration_ms=duration_ms)


def fail(
    changes: ChangeSet,
    node: NodeState,
    error: str,
    ended_by: EndedBy = EndedBy.FAILURE,
    *,
    status: EventStatus | None = None,
    duration_ms: int | None = None,
    reported_at: datetime | None = None,
    next_queue: str | None = None,
    **data: Any,
) -> None:
    """End the attempt; the caller decides whether to retry. `next_queue` is the queue of the next attempt."""
    if node.status in states.NODE_IN_FLIGHT and is_executed(node):
        changes.close_task(node)
    elif node.status is NodeStatus.RUNNING and node.spec.child_job is not None:
        changes.cancel_child(node)
    node.error = error[:MAX_ERROR_LENGTH]
    node.not_before = node.result_of = None
    node.completed_at = changes.now
    if reported_at is not None:
        node.completed_at = _measure(changes, node, reported_at, duration_ms)
        node.times_lost = 0  # Its worker survived it.
    node.queue = next_queue or node.queue
    _move(
        changes, node, states.NODE_FAILED, data, error=error, duration_ms=duration_ms, status=status, ended_by=ended_by
    )


def count_loss(node: NodeState, *, given_back: bool) -> None:
    """The worker died during the attempt, or shut down in order, which costs no retry."""
    node.max_retries += given_back
    node.times_lost += not given_back


def allow_retries(node: NodeState, retries: int) -> None:
    """Grant retries counted from the current attempt."""
    node.max_retries = node.attempt + retries


def retry(changes: ChangeSet, node: NodeState, delay: timedelta, retries: int | None = None) -> None:
    """Start the next attempt after the delay, with a new task id. `retries` grants as many as a new node has."""
    after_error = node.error
    node.attempt += 1
    if retries is not None:
        allow_retries(node, retries)
        node.times_lost = 0
    node.dispatched_at = node.started_at = node.completed_at = node.error = None
    if node.spec.type is not NodeType.FAN_OUT or node.is_child:  # A fan-out keeps its children.
        node.output = None
    node.not_before = changes.now + delay if delay else None
    data = {
        "attempt": node.attempt,
        "max_retries": node.max_retries,
        "not_before": node.not_before,
        "after_error": after_error[:200] if after_error else None,
    }
    if node.queue:
        data["queue"] = node.queue
    _move(changes, node, states.NODE_RETRYING, data)
    if node.not_before is None:
        changes.ready.append(node)
    else:
        changes.arm(TimerKind.RETRY, node.not_before, node)


def end_back_off(changes: ChangeSet, node: NodeState, actor: str | None) -> None:
    """Retry now instead of after the delay."""
    node.not_before = None
    changes.touch(node)
    data = {"attempt": node.attempt, "actor": actor, "at_once": True}
    changes.note("node_retrying", EventStatus.WARNING, node, data)
    changes.ready.append(node)


def skip(changes: ChangeSet, node: NodeState, reason: str) -> None:
    node.not_before = None
    node.completed_at = changes.now
    _move(changes, node, states.NODE_SKIPPED, {"reason": reason})


def reopen(changes: ChangeSet, node: NodeState) -> None:
    """In a reopened job, wait again for the sources."""
    node.completed_at = node.not_before = None
    _move(changes, node, states.NODE_REOPENED)


def rerun(changes: ChangeSet, node: NodeState, retries: int) -> None:
    """Reopen a finalizer, whatever it did the first time."""
    if node.status is not NodeStatus.SKIPPED:
        node.attempt += 1
        allow_retries(node, retries)
    node.dispatched_at = node.started_at = node.output = node.error = None
    reopen(changes, node)


def _measure(changes: ChangeSet, node: NodeState, reported_at: datetime, duration_ms: int | None) -> datetime:
    """Derive the start from the worker's duration, and return the end. The batch may be written much later."""
    ended_at = min(reported_at, changes.now)
    if duration_ms is not None and node.dispatched_at is not None:
        node.started_at = max(ended_at - timedelta(milliseconds=duration_ms), node.dispatched_at)
    return max(ended_at, node.started_at or ended_at)


def _keys(output: Value | None) -> list[str] | None:
    if not isinstance(output, bytes) or len(output) > MAX_SUMMARISED_BYTES:
        return None
    value = orjson.loads(output)
    return list(value)[:MAX_KEYS] if isinstance(value, dict) else None


def _move(
    changes: ChangeSet,
    node: NodeState,
    move: Move[NodeStatus],
    data: dict[str, Any] | None = None,
    *,
    error: str | None = None,
    duration_ms: int | None = None,
    source_app: str = "orchestrator",
    status: EventStatus | None = None,
    ended_by: EndedBy | None = None,
) -> None:
    """Set a node's status and how it ended, and update the counters of open nodes. No other function does."""
    before, job = node.status, changes.job
    if before not in move.sources:
        raise IllegalMove(f"{move.event}: node {node.node_id} of job {job.job_id} is {before}")
    node.status = move.target
    node.ended_by = ended_by = ended_by or move.ended_by
    if ended_by is not None:
        data = data or {}
        data["ended_by"] = ended_by
    _count(changes, node, before)
    job.last_progress_at = changes.now
    if node.node_id in job.awaited and node.status in states.NODE_SUCCESSFUL:
        changes.awaited_results.append(node)
    changes.touch(node)
    changes.note(
        move.event, status or move.status, node, data, error=error, duration_ms=duration_ms, source_app=source_app
    )


def _count(changes: ChangeSet, node: NodeState, before: NodeStatus) -> None:
    job = changes.job
    opened = (node.status not in states.NODE_TERMINAL) - (before not in states.NODE_TERMINAL)
    if opened:
        job.count_open(node, opened)
    if node.parent is not None:
        fan = job.fans[node.parent]
        fan.open += opened
        fan.in_flight += (node.status in states.NODE_IN_FLIGHT) - (before in states.NODE_IN_FLIGHT)
        if fan.waiting and node.status in states.NODE_TERMINAL:  # Its slot, taken or not, is free.
            changes.ready.append(job.nodes[fan.waiting.popleft()])


# Jobs.


def start_job(changes: ChangeSet, first_node: str | None, seconds_allowed: float | None) -> None:
    changes.job.started_at = changes.now
    _set_deadline(changes, seconds_allowed)
    _move_job(changes, states.JOB_STARTED, first_node=first_node)


def complete_job(changes: ChangeSet, result: JobResult, result_keys: Sequence[str]) -> None:
    job = changes.job
    job.completed_at = changes.now
    job.result = result
    job.ended_by = JobEndedBy.RESULT
    _move_job(
        changes,
        states.JOB_COMPLETED,
        ended_by=job.ended_by,
        duration_seconds=job.duration_seconds,
        node_count=len(job.nodes),
        result_keys=result_keys[:MAX_LISTED],
    )


def begin_failing(changes: ChangeSet, error: str, ended_by: JobEndedBy, failed_node: str | None = None) -> None:
    """The job fails with this error when its finalizers have ended."""
    job = changes.job
    job.error, job.ended_by, job.failed_node = error[:MAX_ERROR_LENGTH], ended_by, failed_node
    changes.job_touched = True


def fail_job(changes: ChangeSet, failed_nodes: Sequence[str]) -> None:
    job = changes.job
    job.completed_at = changes.now
    _move_job(
        changes,
        states.JOB_FAILED,
        error=job.error,
        ended_by=job.ended_by,
        failed_node=job.failed_node,
        failed_nodes=failed_nodes[:MAX_LISTED],
        duration_seconds=job.duration_seconds,
    )


def cancel_job(changes: ChangeSet, actor: str | None, reason: str | None) -> None:
    job = changes.job
    job.completed_at = changes.now
    job.error = reason[:MAX_ERROR_LENGTH] if reason else None
    job.ended_by = JobEndedBy.CANCELLED
    _move_job(changes, states.JOB_CANCELLED, ended_by=job.ended_by, actor=actor, reason=reason)


def reopen_job(changes: ChangeSet, seconds_allowed: float | None, **data: Any) -> None:
    """Reopen the job with its full timeout."""
    job = changes.job
    if job.completed_at is not None and not job.is_paused:  # A running pause is counted when it ends.
        job.idle_seconds += max((changes.now - job.completed_at).total_seconds(), 0.0)
    job.completed_at = job.error = job.ended_by = job.failed_node = job.result = None
    changes.reopened = True
    _move_job(changes, states.JOB_REOPENED, **data)
    _set_deadline(changes, seconds_allowed)


def pause_job(changes: ChangeSet, actor: str | None, reason: str | None) -> None:
    changes.job.paused_at, changes.job.paused_by = changes.now, actor
    changes.job_touched = changes.holds_tasks = True
    changes.note("job_paused", EventStatus.WARNING, data={"actor": actor, "reason": reason})


def resume_job(changes: ChangeSet, actor: str | None) -> None:
    """The pause moves the deadline: it counts for no timeout."""
    job = changes.job
    assert job.paused_at is not None, "only a paused job can be resumed"
    pause = changes.now - job.paused_at
    if job.deadline_at is not None:
        job.deadline_at += pause
        changes.arm(TimerKind.DEADLINE, job.deadline_at)
    if job.started_at is not None:
        job.idle_seconds += max(pause.total_seconds(), 0.0)
    job.paused_at = job.paused_by = None
    job.resumed_at = job.last_progress_at = changes.now
    changes.job_touched, changes.holds_tasks = True, False
    data = {"actor": actor, "paused_seconds": round(pause.total_seconds(), 3)}
    changes.note("job_resumed", EventStatus.INFO, data=data)


def _set_deadline(changes: ChangeSet, seconds_allowed: float | None) -> None:
    """A paused job's time starts with the pause: resuming moves the deadline."""
    job = changes.job
    job.deadline_at = None
    if seconds_allowed is not None:
        job.deadline_at = (job.paused_at or changes.now) + timedelta(seconds=seconds_allowed)
        changes.arm(TimerKind.DEADLINE, job.deadline_at)


def _move_job(changes: ChangeSet, move: Move[JobStatus], *, error: str | None = None, **data: Any) -> None:
    """Set a job's status. No other function does."""
    job = changes.job
    if job.status not in move.sources:
        raise IllegalMove(f"{move.event}: job {job.job_id} is {job.status}")
    job.status = move.target
    changes.job_touched = True
    changes.note(move.event, move.status, data=data or None, error=error)
