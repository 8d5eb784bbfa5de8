"""From the engine to workers: tasks for the local worker, and the queues of the others."""

from collections.abc import Collection

from dagmaster.engine.change_set import ChangeSet, Dispatch
from dagmaster.ids import TaskId
from dagmaster.model.states import NodeStatus
from dagmaster.queues.contract import TaskMessage


def task_of(changes: ChangeSet, dispatch: Dispatch) -> TaskMessage:
    """A dispatch as a message to a worker."""
    spec = dispatch.node.task
    return TaskMessage(
        TaskId(dispatch.task_id),
        changes.job.job_id,
        dispatch.node.node_id,
        spec.handler,
        dispatch.node.task_queue,
        dispatch.node.params or b"{}",
        spec.timeout_seconds,
        dispatch.attempt,
        dispatch.at,
        changes.job.correlation_id,
        dispatch.trace_parent or changes.job.trace_parent,
    )


def queues_called(changes: ChangeSet, local: Collection[str]) -> set[str]:
    """The queues with tasks to claim once the change set is written."""
    if changes.holds_tasks is False:
        return {node.task_queue for node in changes.job.nodes.values() if node.status is NodeStatus.DISPATCHED}
    return {task.node.task_queue for task in changes.dispatches.values() if task.task_id not in local}
