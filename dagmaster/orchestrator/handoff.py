"""Between the engine and a worker in the same process: tasks out, reports in."""

from collections.abc import Collection
from datetime import datetime
from typing import Any

import orjson

from dagmaster.engine.change_set import ChangeSet, Dispatch
from dagmaster.engine.messages import Message, TaskCompleted, TaskFailed, TaskLost
from dagmaster.ids import JobId, TaskId, WorkerId
from dagmaster.model.states import NodeStatus
from dagmaster.queues.contract import TaskMessage, TaskReport


def message_of(report: TaskReport, worker_id: WorkerId, at: datetime) -> Message:
    """A report as the engine takes it."""
    match report.kind:
        case "completed":
            output = report.output or b"{}"
            return TaskCompleted(
                report.node_id, report.task_id, worker_id, at, output, report.duration_ms, report.details
            )
        case "failed":
            return TaskFailed(
                report.node_id,
                report.task_id,
                worker_id,
                at,
                report.error or "failed without a message",
                report.permanent,
                report.retry_after_seconds,
                report.duration_ms,
                report.error_types,
                report.details,
                report.timed_out,
            )
        case "given_back":
            return TaskLost(report.node_id, report.task_id, worker_id, at, given_back=True)


def mail_of(job_id: JobId, message: Message | None) -> dict[str, Any]:
    """Such a message as a row of the mailbox, for a job that is somebody else's by now."""
    match message:
        case TaskCompleted(output=bytes() as output):
            kind: dict[str, Any] = {"kind": "completed", "output": orjson.Fragment(output)}
            kind["data"] = {"details": message.details} if message.details else None
        case TaskFailed():
            data = {
                "permanent": message.permanent,
                "retry_after_seconds": message.retry_after_seconds,
                "error_types": message.error_types,
                "details": message.details,
                "timed_out": message.timed_out,
            }
            kind = {"kind": "failed", "error": message.error, "data": data}
        case TaskLost():
            kind = {"kind": "given_back" if message.given_back else "lost"}
        case _:
            raise AssertionError(f"{message} is no report")
    ids = {"job_id": job_id, "node_id": message.node_id, "task_id": message.task_id, "worker_id": message.worker_id}
    return ids | kind | {"duration_ms": getattr(message, "duration_ms", None)}


def task_of(changes: ChangeSet, dispatch: Dispatch) -> TaskMessage:
    """A dispatch as a worker takes it."""
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
    """The queues whose workers have something to take when the change set is written."""
    if changes.holds_tasks is False:
        return {node.task_queue for node in changes.job.nodes.values() if node.status is NodeStatus.DISPATCHED}
    return {task.node.task_queue for task in changes.dispatches.values() if task.task_id not in local}
