"""Start the finalizers when all other nodes have ended: first `on_failure`, then `finally`."""

from dagmaster.engine import transitions
from dagmaster.engine.change_set import ChangeSet
from dagmaster.engine.edges import make_ready
from dagmaster.engine.job_end import fail_if_incomplete
from dagmaster.engine.state import JobState
from dagmaster.model.finalizers import FINALIZERS, Phase
from dagmaster.model.states import JobStatus, NodeStatus

NOT_FAILED = "job_did_not_fail"


def start_finalizers(changes: ChangeSet) -> bool:
    """Start the finalizers that are due; False if there are none or they are already running."""
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
    for node in _nodes_of(changes.job, Phase.ON_FAILURE):
        if changes.job.nodes[node].status is NodeStatus.PENDING:
            transitions.skip(changes, changes.job.nodes[node], NOT_FAILED)


def _nodes_of(job: JobState, phase: Phase) -> list[str]:
    return [node_id for node_id, spec in job.graph.nodes.items() if spec.phase is phase]
