"""How a job ends: completed, failed or cancelled, once."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import orjson

from dagmaster.engine.edges import skip
from dagmaster.engine.messages import Cancel, TimerKind
from dagmaster.engine.state import JobState, NodeState, failed_nodes
from dagmaster.engine.turn import MAX_ERROR_LENGTH, Turn
from dagmaster.engine.values import JobResult, StoredValue, Value, size_of, spell_size
from dagmaster.model.graph import NodeType
from dagmaster.model.last import Phase
from dagmaster.model.states import (
    JOB_CANCELLED,
    JOB_COMPLETED,
    JOB_FAILED,
    JOB_STARTED,
    NODE_IN_FLIGHT,
    EndedBy,
    EventStatus,
    JobStatus,
    NodeStatus,
)

WAITING_TYPES = (NodeType.WAIT, NodeType.APPROVAL, NodeType.WORKFLOW)
# Why what comes now changes nothing.
ENDED = "the job has ended"
# What the row of a node says that was under way.
REVOKED = {
    EndedBy.REVOKED: "stopped because the job failed",
    EndedBy.CANCELLED: "stopped because the job was cancelled",
}


def complete_if_done(turn: Turn) -> None:
    """The last open node has ended."""
    job = turn.job
    if job.open or job.status is not JobStatus.RUNNING or turn.ready:
        return
    if job.error is not None:  # The last chains have run.
        _end_failed(turn)
        return
    if failed := failed_nodes(job):  # Whoever held it before has failed the node, and not the job.
        fail_job(turn, f"node {failed[0]} failed: {job.nodes[failed[0]].error}", failed[0])
        return
    job.completed_at = turn.now
    job.result = _result(turn)
    keys = [node.node_id for node in job.nodes.values() if node.output is not None and node.node_id in job.graph.nodes]
    turn.move_job(
        JOB_COMPLETED,
        duration_seconds=job.duration_seconds,
        node_count=len(job.nodes),
        result_keys=keys[:100],
    )


def start_job(turn: Turn, first_node: str | None) -> None:
    turn.job.started_at = turn.now
    set_deadline(turn)
    turn.move_job(JOB_STARTED, first_node=first_node)


def set_deadline(turn: Turn) -> None:
    """As its workflow says. The default is for jobs that work: none that may rightly wait for days has it."""
    job, seconds = turn.job, turn.job.graph.workflow.timeout_seconds
    if seconds is None and not any(spec.type in WAITING_TYPES for spec in job.graph.nodes.values()):
        seconds = turn.rules.default_job_timeout_seconds
    job.deadline_at = turn.now + timedelta(seconds=seconds) if seconds is not None else None
    if job.deadline_at is not None:
        turn.arm(TimerKind.DEADLINE, job.deadline_at)


def end_late(turn: Turn) -> None:
    """Its time is over. The chains that run last have no limit, and a pause has moved the deadline."""
    job = turn.job
    if job.deadline_at is None or job.is_paused or turn.now < job.deadline_at or job.error is not None:
        return
    if job.last_open and not job.main_open:
        return
    began = job.started_at or job.created_at
    fail_job(turn, f"Timeout: the job did not end within {(job.deadline_at - began).total_seconds():g} s")


def fail_job(turn: Turn, error: str, failed_node: str | None = None) -> None:
    """Fail fast: nothing more is dispatched, what runs is revoked (rulings C-08, D-01).

    With chains that run last the job is failing from now on, and has failed when they have ended.
    """
    job = turn.job
    if job.status is JobStatus.PENDING:
        start_job(turn, None)
    job.error, job.failed_node = error[:MAX_ERROR_LENGTH], failed_node
    turn.job_touched = True
    _close_nodes(turn, "job_failed", EndedBy.REVOKED, with_last=False)
    if not job.open:
        _end_failed(turn)


def give_up(turn: Turn, error: str) -> None:
    """It does not move any more; if the last chains do not, there is nothing left to wait for."""
    job = turn.job
    if not job.last_open or job.main_open:
        fail_job(turn, error)
        return
    job.error = job.error or error[:MAX_ERROR_LENGTH]
    _close_nodes(turn, "job_failed", EndedBy.REVOKED)
    _end_failed(turn)


def _end_failed(turn: Turn) -> None:
    job = turn.job
    job.completed_at = turn.now
    failed = failed_nodes(job)
    turn.move_job(
        JOB_FAILED,
        error=job.error,
        failed_node=job.failed_node,
        failed_nodes=failed[:100],
        duration_seconds=job.duration_seconds,
    )


def cancel(turn: Turn, message: Cancel) -> None:
    job = turn.job
    job.completed_at = turn.now
    job.error = message.reason[:MAX_ERROR_LENGTH] if message.reason else None
    _close_nodes(turn, "job_cancelled", EndedBy.CANCELLED)
    turn.move_job(JOB_CANCELLED, actor=message.actor, reason=message.reason)


def _close_nodes(turn: Turn, reason: str, ended_by: EndedBy, *, with_last: bool = True) -> None:
    """Nothing is left open: what had not begun is skipped, what was under way is revoked."""
    turn.ready.clear()
    turn.job.held.clear()
    turn.job.postponed.clear()
    turn.holds_tasks = None  # They are closed, not held.
    for fan in turn.job.fans.values():
        fan.waiting.clear()
        fan.items = None
    for node in list(turn.job.nodes.values()):
        if not with_last and node.spec.phase is not Phase.MAIN:
            continue
        if node.status in (NodeStatus.PENDING, NodeStatus.READY):
            skip(turn, node, reason)
        elif node.status in NODE_IN_FLIGHT:
            turn.fail(node, REVOKED[ended_by], ended_by, status=EventStatus.WARNING, will_retry=False)


def _result(turn: Turn) -> JobResult:
    """The outputs by node, without a fan-out's children (ruling D-18), and where they come from."""
    job = turn.job
    workflow = job.graph.workflow
    given = {node.node_id: node.output for node in _with_output(job)}
    outputs = _within_limit(turn, given)
    data = {name: orjson.Fragment(value) for name, value in outputs.items() if isinstance(value, bytes)}
    parts = {name: value for name, value in outputs.items() if isinstance(value, StoredValue)}
    provenance: dict[str, Any] = {
        "workflow_id": workflow.workflow_id,
        "workflow_version": workflow.version,
        "job_id": str(job.job_id),
        "completed_at": job.completed_at,
    }
    if left_out := [name for name in given if name not in outputs]:
        provenance["left_out"] = left_out
    return JobResult(orjson.dumps({**data, "_provenance": provenance}), parts)


def _within_limit(turn: Turn, outputs: Mapping[str, Value | None]) -> dict[str, Value]:
    """Large values are copied from where they are. When all are too much, the largest stay with their nodes alone."""
    left, most = sum(map(size_of, outputs.values())), turn.rules.max_result_bytes
    kept: dict[str, Value] = {}
    omitted = []
    for name in sorted(outputs, key=lambda name: size_of(outputs[name]), reverse=True):
        value = outputs[name] or b"null"
        if left > most:
            left -= size_of(value)
            omitted.append(name)
        else:
            is_small = isinstance(value, bytes) and len(value) <= turn.rules.inline_bytes
            kept[name] = value if is_small else _place(name, value)
    if omitted:
        limit = f"{spell_size(most)} (max_result_bytes)"
        warning = f"the result would be over {limit}; it leaves out outputs that are found at their nodes"
        turn.note("job_warning", EventStatus.WARNING, warning=warning, left_out=omitted[:100])
    return {name: kept[name] for name in outputs if name in kept}


def _place(name: str, value: Value) -> StoredValue:
    """Where it is, or is being written."""
    is_elsewhere = isinstance(value, StoredValue) and (value.mail_id or value.node_id)
    return value if is_elsewhere and isinstance(value, StoredValue) else StoredValue(size_of(value), node_id=name)


def _with_output(job: JobState) -> list[NodeState]:
    nodes = (job.nodes[node_id] for node_id in job.graph.nodes)
    return [node for node in nodes if node.output is not None and node.status is NodeStatus.COMPLETED]
