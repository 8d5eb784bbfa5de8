"""The end of a job: completed, failed or cancelled, exactly once."""

from collections.abc import Mapping
from typing import Any

import orjson

from dagmaster.engine import transitions
from dagmaster.engine.change_set import ChangeSet
from dagmaster.engine.edges import is_bypassed, make_ready
from dagmaster.engine.messages import Cancel
from dagmaster.engine.state import JobState, failed_nodes, is_revoked
from dagmaster.engine.values import JobResult, StoredValue, Value, size_of, spell_size
from dagmaster.model.finalizers import FINALIZERS, Phase
from dagmaster.model.graph import NodeType
from dagmaster.model.states import NODE_IN_FLIGHT, EndedBy, EventStatus, JobEndedBy, JobStatus, NodeStatus

WAITING_TYPES = (NodeType.WAIT, NodeType.APPROVAL, NodeType.WORKFLOW)
# Why a late message changes nothing.
ENDED = "the job has ended"
# The error of a node that was in flight.
REVOKED = {
    EndedBy.REVOKED: "stopped because the job failed",
    EndedBy.CANCELLED: "stopped because the job was cancelled",
}


def start_finalizers(changes: ChangeSet) -> bool:
    """Start the finalizers when all other nodes have ended: first `on_failure`, then `finally`.

    False if there are none or they are already running.
    """
    job = changes.job
    if not job.open_finalizers or job.open_main or changes.ready or job.status is not JobStatus.RUNNING:
        return False
    for phase in FINALIZERS:
        if not job.open_finalizers[phase]:
            continue
        pending = [job.nodes[head] for head in job.graph.heads[phase] if job.nodes[head].status is NodeStatus.PENDING]
        if not pending:
            return False
        if not _has_failed(changes) and phase is Phase.ON_FAILURE:
            _skip_on_failure(changes)
            continue
        for head in pending:
            make_ready(changes, head)
        return True
    return False


def _has_failed(changes: ChangeSet) -> bool:
    return changes.job.error is not None or fail_if_incomplete(changes)


def _skip_on_failure(changes: ChangeSet) -> None:
    for spec in changes.job.graph.nodes.values():
        node = changes.job.nodes[spec.node_id]
        if spec.phase is Phase.ON_FAILURE and node.status is NodeStatus.PENDING:
            transitions.skip(changes, node, "job_did_not_fail")


def complete_if_done(changes: ChangeSet) -> None:
    """Complete the job when its last open node has ended."""
    job = changes.job
    if job.open or job.status is not JobStatus.RUNNING or changes.ready:
        return
    if job.error is not None:  # The finalizers have run.
        _end_failed(changes)
        return
    if fail_if_incomplete(changes):
        return
    keys = [node.node_id for node in job.nodes.values() if node.output is not None and node.node_id in job.graph.nodes]
    transitions.complete_job(changes, _result(changes), keys)


def fail_if_incomplete(changes: ChangeSet) -> bool:
    """Fail a job whose nodes are not all done: a former owner failed a node but not the job, or a partial retry."""
    job = changes.job
    if failed := failed_nodes(job):
        fail_job(changes, f"node {failed[0]} failed: {job.nodes[failed[0]].error}", failed_node=failed[0])
    elif (unfinished := _find_unfinished(job)) is not None:
        fail_job(changes, f"node {unfinished} was not retried", failed_node=unfinished)
    return job.error is not None


def _find_unfinished(job: JobState) -> str | None:
    """A node that was neither done nor bypassed; preferably one that blocks others."""
    unfinished = [
        node
        for node in job.nodes.values()
        if (is_revoked(node) or (node.status is NodeStatus.SKIPPED and not is_bypassed(node)))
        and job.phase_of(node) is Phase.MAIN
    ]
    first = min(unfinished, key=lambda node: (not is_revoked(node), not node.is_child), default=None)
    return first.node_id if first is not None else None


def start_job(changes: ChangeSet, first_node: str | None) -> None:
    transitions.start_job(changes, first_node, seconds_allowed(changes))


def seconds_allowed(changes: ChangeSet) -> float | None:
    """The timeout of the workflow. The default does not apply to jobs that may wait for days."""
    graph = changes.job.graph
    if graph.workflow.timeout_seconds is not None or any(spec.type in WAITING_TYPES for spec in graph.nodes.values()):
        return graph.workflow.timeout_seconds
    return changes.rules.default_job_timeout_seconds


def fail_overdue(changes: ChangeSet) -> None:
    """Fail a job past its deadline. Finalizers have no limit, and a pause has moved the deadline."""
    job = changes.job
    if job.deadline_at is None or job.is_paused or changes.now < job.deadline_at or job.error is not None:
        return
    if job.open_finalizers and not job.open_main:
        return
    seconds = seconds_allowed(changes)  # None if the operator has removed the default since.
    within = f"within {seconds:g} s" if seconds is not None else f"by {job.deadline_at:%Y-%m-%d %H:%M:%S} UTC"
    fail_job(changes, f"Timeout: the job did not end {within}", JobEndedBy.DEADLINE)


def fail_job(
    changes: ChangeSet, error: str, ended_by: JobEndedBy = JobEndedBy.FAILURE, *, failed_node: str | None = None
) -> None:
    """Fail fast: dispatch nothing more and revoke running tasks.

    With finalizers the job is failing from now on, and fails when they have ended.
    """
    job = changes.job
    if job.status is JobStatus.PENDING:
        start_job(changes, None)
    transitions.begin_failing(changes, error, ended_by, failed_node)
    _close_nodes(changes, "job_failed", EndedBy.REVOKED, with_finalizers=False)
    if not job.open:
        _end_failed(changes)


def fail_stalled(changes: ChangeSet, error: str) -> None:
    """Fail a job without progress. If its finalizers have stalled too, it ends at once."""
    job = changes.job
    if not job.open_finalizers or job.open_main:
        fail_job(changes, error, JobEndedBy.NO_PROGRESS)
        return
    if job.error is None:
        transitions.begin_failing(changes, error, JobEndedBy.NO_PROGRESS)
    _close_nodes(changes, "job_failed", EndedBy.REVOKED)
    _end_failed(changes)


def _end_failed(changes: ChangeSet) -> None:
    transitions.fail_job(changes, failed_nodes(changes.job))


def cancel(changes: ChangeSet, message: Cancel) -> None:
    _close_nodes(changes, "job_cancelled", EndedBy.CANCELLED)
    transitions.cancel_job(changes, message.actor, message.reason)


def _close_nodes(changes: ChangeSet, reason: str, ended_by: EndedBy, *, with_finalizers: bool = True) -> None:
    """Close every open node: skip those that have not started, revoke those in flight."""
    changes.ready.clear()
    changes.job.backlog.clear()
    changes.job.postponed.clear()
    changes.holds_tasks = None  # The tasks are closed, not paused.
    for fan in changes.job.fans.values():
        fan.waiting.clear()
        fan.items = None
    for node in list(changes.job.nodes.values()):
        if not with_finalizers and node.spec.phase is not Phase.MAIN:
            continue
        if node.status in (NodeStatus.PENDING, NodeStatus.READY):
            transitions.skip(changes, node, reason)
        elif node.status in NODE_IN_FLIGHT:
            error = REVOKED[ended_by]
            transitions.fail(changes, node, error, ended_by, status=EventStatus.WARNING, will_retry=False)


def _result(changes: ChangeSet) -> JobResult:
    """The outputs by node, without those of children, and their provenance."""
    job = changes.job
    workflow = job.graph.workflow
    nodes = (job.nodes[node_id] for node_id in job.graph.nodes)
    node_outputs = {node.node_id: node.output for node in nodes if node.status is NodeStatus.COMPLETED and node.output}
    outputs = _within_limit(changes, node_outputs)
    data = {name: orjson.Fragment(value) for name, value in outputs.items() if isinstance(value, bytes)}
    parts = {name: value for name, value in outputs.items() if isinstance(value, StoredValue)}
    provenance: dict[str, Any] = {
        "workflow_id": workflow.workflow_id,
        "workflow_version": workflow.version,
        "job_id": str(job.job_id),
        "completed_at": changes.now,
    }
    if omitted := [name for name in node_outputs if name not in outputs]:
        provenance["left_out"] = omitted
    return JobResult(orjson.dumps({**data, "_provenance": provenance}), parts)


def _within_limit(changes: ChangeSet, outputs: Mapping[str, Value]) -> dict[str, Value]:
    """Large values are copied in the database. If the total exceeds the limit, the largest are left out."""
    total, limit = sum(map(size_of, outputs.values())), changes.rules.max_result_bytes
    included: dict[str, Value] = {}
    omitted = []
    for name in sorted(outputs, key=lambda name: size_of(outputs[name]), reverse=True):
        value = outputs[name]
        if total > limit:
            total -= size_of(value)
            omitted.append(name)
        elif isinstance(value, StoredValue):
            included[name] = value.located(name)
        else:
            is_small = len(value) <= changes.rules.inline_bytes
            included[name] = value if is_small else StoredValue(len(value), node_id=name)
    if omitted:
        exceeded = f"the result would exceed {spell_size(limit)} (max_result_bytes)"
        warning = f"{exceeded}; the outputs left out are found at their nodes"
        changes.note("job_warning", EventStatus.WARNING, data={"warning": warning, "left_out": omitted[:100]})
    return {name: included[name] for name in outputs if name in included}
