"""A paused job starts nothing: its ready nodes stay ready, its waiting tasks keep their place and are not taken."""

from dagmaster.engine.change_set import ChangeSet
from dagmaster.engine.messages import Pause, Resume, TimerKind
from dagmaster.engine.node_start import is_backing_off, start, take_up
from dagmaster.model.states import EventStatus, JobStatus, NodeStatus

WAITING = (NodeStatus.READY, NodeStatus.DISPATCHED)


def pause(changes: ChangeSet, message: Pause) -> None:
    job = changes.job
    if job.is_paused:
        return
    job.paused_at, job.paused_by = changes.now, message.actor
    changes.job_touched = changes.holds_tasks = True
    changes.note("job_paused", EventStatus.WARNING, actor=message.actor, reason=message.reason)


def unpause(changes: ChangeSet, message: Resume) -> None:
    """Everything that waits is looked at anew; the time it stood still counts for no timeout."""
    job = changes.job
    if job.paused_at is None:
        return
    seconds = round((changes.now - job.paused_at).total_seconds(), 3)
    if job.deadline_at is not None:
        job.deadline_at += changes.now - job.paused_at
        changes.arm(TimerKind.DEADLINE, job.deadline_at)
    job.paused_at = job.paused_by = None
    job.resumed_at = job.last_progress_at = changes.now
    changes.job_touched, changes.holds_tasks = True, False
    changes.note("job_resumed", EventStatus.INFO, actor=message.actor, paused_seconds=seconds)
    if job.status is JobStatus.PENDING:
        start(changes)
        return
    job.held.clear()
    for node_id in [one for one in job.postponed if job.nodes[one].status in WAITING]:
        del job.postponed[node_id]
    for fan in job.fans.values():
        fan.waiting.clear()
    for node in list(job.nodes.values()):
        # The timer of a back-off that is not over is still armed; a second one would make it wait twice for a place.
        if node.status in WAITING and not is_backing_off(changes, node):
            take_up(changes, node)
