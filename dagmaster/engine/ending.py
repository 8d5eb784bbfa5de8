"""How a job ends: completed, failed or cancelled, once."""

import orjson

from dagmaster.engine.edges import skip
from dagmaster.engine.messages import Cancel
from dagmaster.engine.state import JobState, NodeState, failed_nodes
from dagmaster.engine.turn import MAX_ERROR_LENGTH, Turn
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
    job.result = _result(job)
    keys = [node.node_id for node in job.nodes.values() if node.output is not None and node.node_id in job.graph.nodes]
    turn.move_job(
        JOB_COMPLETED,
        duration_seconds=job.duration_seconds,
        node_count=len(job.nodes),
        result_keys=keys[:100],
    )


def start_job(turn: Turn, first_node: str | None) -> None:
    turn.job.started_at = turn.now
    turn.move_job(JOB_STARTED, first_node=first_node)


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


def _result(job: JobState) -> bytes:
    """The outputs by node, without a fan-out's children (ruling D-18), and where they come from."""
    workflow = job.graph.workflow
    data = {node.node_id: orjson.Fragment(node.output or b"null") for node in _with_output(job)}
    provenance = {
        "workflow_id": workflow.workflow_id,
        "workflow_version": workflow.version,
        "job_id": str(job.job_id),
        "completed_at": job.completed_at,
    }
    return orjson.dumps({**data, "_provenance": provenance})


def _with_output(job: JobState) -> list[NodeState]:
    nodes = (job.nodes[node_id] for node_id in job.graph.nodes)
    return [node for node in nodes if node.output is not None and node.status is NodeStatus.COMPLETED]
