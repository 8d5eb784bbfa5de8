"""The chains that run last: when all else has ended they get their turn, first `on_failure`, then `finally`."""

from dagmaster.engine import transitions
from dagmaster.engine.change_set import ChangeSet
from dagmaster.engine.edges import make_ready
from dagmaster.engine.job_end import fail_job
from dagmaster.engine.state import JobState, failed_nodes
from dagmaster.model.finalizers import LAST, Phase
from dagmaster.model.states import JobStatus, NodeStatus

NOT_FAILED = "job_did_not_fail"


def start_finalizers(changes: ChangeSet) -> bool:
    """Start the chains whose time has come; False when there is none, or when they are under way."""
    job = changes.job
    if not job.last_open or job.main_open or changes.ready or job.status is not JobStatus.RUNNING:
        return False
    for phase in LAST:
        if not job.last_open[phase]:
            continue
        pending = [job.nodes[head] for head in job.graph.heads[phase] if job.nodes[head].status is NodeStatus.PENDING]
        if not pending:
            return False
        if phase is Phase.ON_FAILURE and not _has_failed(changes):
            _pass_by(changes)
            continue
        for head in pending:
            make_ready(changes, head)
        return True
    return False


def _has_failed(changes: ChangeSet) -> bool:
    """Whoever held it before may have failed a node, and not the job."""
    job = changes.job
    if job.error is None and (failed := failed_nodes(job)):
        fail_job(changes, f"node {failed[0]} failed: {job.nodes[failed[0]].error}", failed_node=failed[0])
    return job.error is not None


def _pass_by(changes: ChangeSet) -> None:
    for node in _nodes_of(changes.job, Phase.ON_FAILURE):
        if changes.job.nodes[node].status is NodeStatus.PENDING:
            transitions.skip(changes, changes.job.nodes[node], NOT_FAILED)


def _nodes_of(job: JobState, phase: Phase) -> list[str]:
    return [node_id for node_id, spec in job.graph.nodes.items() if spec.phase is phase]
