"""Pause and resume: a paused job starts nothing, and its waiting tasks keep their place in the queue."""

from dagmaster.engine import transitions
from dagmaster.engine.change_set import ChangeSet
from dagmaster.engine.messages import Pause, Resume
from dagmaster.engine.node_start import is_backing_off, resume_node, start
from dagmaster.model.states import JobStatus, NodeStatus

WAITING = (NodeStatus.READY, NodeStatus.DISPATCHED)


def pause(changes: ChangeSet, message: Pause) -> None:
    if not changes.job.is_paused:
        transitions.pause_job(changes, message.actor, message.reason)


def resume(changes: ChangeSet, message: Resume) -> None:
    """Resume all waiting nodes; the time of the pause counts for no timeout."""
    job = changes.job
    if not job.is_paused:
        return
    transitions.resume_job(changes, message.actor)
    if job.status is JobStatus.PENDING:
        start(changes)
        return
    job.backlog.clear()
    for node_id in [name for name in job.postponed if job.nodes[name].status in WAITING]:
        del job.postponed[node_id]
    for fan in job.fans.values():
        fan.waiting.clear()
    for node in list(job.nodes.values()):
        # The timer of a running back-off is still armed; a second one would make the node wait for two slots.
        if node.status in WAITING and not is_backing_off(changes, node):
            resume_node(changes, node)
