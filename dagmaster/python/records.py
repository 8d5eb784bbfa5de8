"""Jobs, their outcomes, tasks and workers as the Python API shows them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from textwrap import indent
from typing import Any, Self

from dagmaster.errors import DagmasterError
from dagmaster.model.states import ENDED_WITH_JOB, JobStatus, NodeStatus


class TaskState(StrEnum):
    """A simplified node status: every waiting task is pending."""

    PENDING = "pending"
    CLAIMED = "claimed"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class WorkerState(StrEnum):
    ACTIVE = "active"
    IDLE = "idle"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class JobInfo:
    id: int
    name: str
    status: JobStatus
    created_at: datetime
    started_at: datetime | None
    completed_at: datetime | None
    error: str | None

    @classmethod
    def of(cls, row: Mapping[str, Any], name: str | None = None) -> Self:
        """`name` is the caller's; the workflow id was derived from it."""
        return cls(
            row["job_id"],
            name or row["workflow_id"],
            JobStatus(row["status"]),
            error=row["error_message"],
            **_same(row, "created_at", "started_at", "completed_at"),
        )


class JobFailed(DagmasterError):
    """The job has not completed."""

    def __init__(self, message: str = "", *, job_id: int = 0, status: JobStatus = JobStatus.FAILED) -> None:
        super().__init__(message)
        self.job_id, self.status = job_id, status


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """`result` holds the outputs by node, `log` the last lines of the task that failed."""

    job_id: int
    status: JobStatus
    error: str | None = None
    result: Mapping[str, Any] | None = field(default=None, repr=False)
    inputs: Mapping[str, Any] = field(default_factory=dict, repr=False)
    log: str | None = field(default=None, repr=False)

    @property
    def is_completed(self) -> bool:
        return self.status is JobStatus.COMPLETED

    def need_completed(self) -> None:
        """Raises JobFailed, with the caller's traceback, unless the job completed."""
        if self.is_completed:
            return
        reason = self.error or "no error message"
        error = JobFailed(f"job {self.job_id} {self.status}: {reason}", job_id=self.job_id, status=self.status)
        if self.log:
            error.add_note(f"The log of the task:\n{indent(self.log, '  ')}")
        raise error


@dataclass(frozen=True, slots=True)
class TaskInfo:
    """`kwargs` refer to results of other tasks as `{"$result": node}` until they are known."""

    id: int
    job_id: int
    group_id: int | None
    node_id: str
    entrypoint: str
    kwargs: dict[str, Any]
    status: TaskState
    result: Any
    error: str | None
    worker_id: str | None
    log_path: str | None
    attempt: int
    created_at: datetime
    claimed_at: datetime | None
    started_at: datetime | None
    completed_at: datetime | None

    @classmethod
    def of(cls, task_id: int, row: Mapping[str, Any]) -> Self:
        output = row["output"]
        return cls(
            task_id,
            group_id=int(row["group_id"]) if row["group_id"] is not None else None,
            entrypoint=row["handler"],
            kwargs=row["kwargs"] or {},
            status=state_of(row),
            result=output.get("result", output) if isinstance(output, dict) else output,
            error=row["error_message"],
            attempt=row["retry_count"] + 1,
            **_same(row, "job_id", "node_id", "worker_id", "log_path"),
            **_same(row, "created_at", "claimed_at", "started_at", "completed_at"),
        )


def state_of(row: Mapping[str, Any]) -> TaskState:
    match NodeStatus(row["status"]):
        case NodeStatus.DISPATCHED if row["claimed_at"] is not None:
            return TaskState.CLAIMED
        case NodeStatus.PENDING | NodeStatus.READY | NodeStatus.DISPATCHED:
            return TaskState.PENDING
        case NodeStatus.RUNNING:
            return TaskState.RUNNING
        case NodeStatus.COMPLETED:
            return TaskState.COMPLETED
        case NodeStatus.FAILED if row["ended_by"] not in ENDED_WITH_JOB:
            return TaskState.FAILED
        case NodeStatus.FAILED | NodeStatus.SKIPPED:
            return TaskState.CANCELLED


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    id: str
    hostname: str
    pid: int
    status: WorkerState
    last_heartbeat: datetime
    tasks_completed: int
    tasks_failed: int
    started_at: datetime

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Self:
        status = WorkerState.STOPPED
        if row["status"] == "active":
            status = WorkerState.ACTIVE if row["running_tasks"] else WorkerState.IDLE
        counts = _same(row, "tasks_completed", "tasks_failed")
        return cls(
            row["worker_id"], status=status, **counts, **_same(row, "hostname", "pid", "last_heartbeat", "started_at")
        )


def _same(row: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: row[name] for name in names}
