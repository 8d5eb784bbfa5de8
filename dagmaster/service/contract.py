"""The commands as values, and the interface of the service over the database or over HTTP."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar, Literal, Protocol

from dagmaster.errors import Invalid
from dagmaster.ids import JobId, ScheduleId, WorkerId
from dagmaster.model.shapes import Box

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Cancel:
    """Skip nodes that have not started, and stop running tasks."""

    verb: ClassVar[str] = "cancel"
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Pause:
    """Start nothing more; running tasks may end."""

    verb: ClassVar[str] = "pause"
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Resume:
    """End a pause."""

    verb: ClassVar[str] = "resume"


@dataclass(frozen=True, slots=True)
class Retry:
    """Retry one node, all failed nodes, or those of them that touch a box: west, south, east, north."""

    verb: ClassVar[str] = "retry"
    node_id: str | None = None
    bbox: Box | None = None

    def __post_init__(self) -> None:
        if self.node_id is not None and self.bbox is not None:
            raise Invalid("retry a node or a bbox, not both")


@dataclass(frozen=True, slots=True)
class Decide:
    """Approve or reject an approval node."""

    node_id: str
    is_approved: bool
    comment: str | None = None


@dataclass(frozen=True, slots=True)
class Signal:
    """Wake the nodes that wait for it; if none does, it is kept for the first that will."""

    name: str
    data: Any = None


# The client derives the path of a change from its `verb`, and the command line its message.
WholeJobChange = Cancel | Pause | Resume
JobChange = WholeJobChange | Retry
JobCommand = JobChange | Decide | Signal


@dataclass(frozen=True, slots=True)
class ControlResult:
    """`status` is that of the job, or of the decided node.

    `is_done` is false if the job's owner has not acted yet. A retry within a box runs `selected_nodes` of
    `unfinished_nodes`.
    """

    status: str
    is_done: bool
    is_paused: bool = False
    selected_nodes: int | None = None
    unfinished_nodes: int | None = None


@dataclass(frozen=True, slots=True)
class SubmitRequest:
    """`workflow` is the id of a workflow; services that read files also accept their names."""

    workflow: str
    inputs: Mapping[str, Any] = field(default_factory=dict)
    priority: int = 0
    submitted_by: str = ""
    correlation_id: str | None = None
    idempotency_key: str | None = None
    callback_url: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SubmitResult:
    """`is_new` is false for a job that was submitted before with the same key; `warnings` are for a new one."""

    job_id: JobId
    workflow_id: str
    workflow_version: int
    status: str
    is_new: bool
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TriggerResult:
    schedule_id: ScheduleId
    job_id: JobId
    scheduled_for: datetime


@dataclass(frozen=True, slots=True)
class BackfillRequest:
    """From `start` up to but excluding `end`; times without an offset are in the schedule's timezone."""

    start: datetime
    end: datetime
    max_jobs: int = 1000
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class BackfillResult:
    """Of all `times` in the range, `existing` already had a job; `left` remain for another call."""

    schedule_id: ScheduleId
    times: int
    existing: int
    submitted: int
    left: int
    first: datetime | None
    last: datetime | None
    job_ids: Sequence[int | str] = ()


ScheduleCommand = Literal["pause", "resume"]
WorkerCommand = Literal["drain", "stop", "resume"]


class Service(Protocol):
    """Over the database it is a `DatabaseService`, over HTTP an `HttpService` of the client."""

    async def submit(self, request: SubmitRequest) -> SubmitResult: ...

    async def control_job(self, job_id: JobId, command: JobCommand) -> ControlResult: ...

    async def control_schedule(self, schedule_id: ScheduleId, command: ScheduleCommand) -> Row:
        """Returns the schedule after the change."""

    async def trigger_schedule(self, schedule_id: ScheduleId) -> TriggerResult: ...

    async def backfill_schedule(self, schedule_id: ScheduleId, request: BackfillRequest) -> BackfillResult: ...

    async def control_worker(self, worker_id: WorkerId, command: WorkerCommand) -> str:
        """Returns the worker's desired state."""

    async def clear_cache(self, handler: str | None) -> int:
        """Returns the number of cleared results."""
