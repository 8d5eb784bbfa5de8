"""The chains that run last: when all else has ended they get their turn, first `on_failure`, then `finally`."""

from dagmaster.engine.edges import make_ready, skip
from dagmaster.engine.ending import fail_job
from dagmaster.engine.state import JobState, failed_nodes
from dagmaster.engine.turn import Turn
from dagmaster.model.last import LAST, Phase
from dagmaster.model.states import JobStatus, NodeStatus

NOT_FAILED = "job_did_not_fail"


def begin_last(turn: Turn) -> bool:
    """Start the chains whose time has come; False when there is none, or when they are under way."""
    job = turn.job
    if not job.last_open or job.main_open or turn.ready or job.status is not JobStatus.RUNNING:
        return False
    for phase in LAST:
        if not job.last_open[phase]:
            continue
        pending = [job.nodes[head] for head in job.graph.heads[phase] if job.nodes[head].status is NodeStatus.PENDING]
        if not pending:
            return False
        if phase is Phase.ON_FAILURE and not _has_failed(turn):
            _pass_by(turn)
            continue
        for head in pending:
            make_ready(turn, head)
        return True
    return False


def _has_failed(turn: Turn) -> bool:
    """Whoever held it before may have failed a node, and not the job."""
    job = turn.job
    if job.error is None and (failed := failed_nodes(job)):
        fail_job(turn, f"node {failed[0]} failed: {job.nodes[failed[0]].error}", failed[0])
    return job.error is not None


def _pass_by(turn: Turn) -> None:
    for node in _nodes_of(turn.job, Phase.ON_FAILURE):
        if turn.job.nodes[node].status is NodeStatus.PENDING:
            skip(turn, turn.job.nodes[node], NOT_FAILED)


def _nodes_of(job: JobState, phase: Phase) -> list[str]:
    return [node_id for node_id, spec in job.graph.nodes.items() if spec.phase is phase]
