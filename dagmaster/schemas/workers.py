"""The protocol of remote workers."""

from base64 import b64decode
from binascii import Error as NotBase64
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from dagmaster.model.retry import RetryPolicy
from dagmaster.schemas.callbacks import Finite, Long, TaskId, Text
from dagmaster.schemas.common import Body, Id, Json, Reply, Time

PROTOCOL = 1
MAX_BATCH = 1000

Name = Annotated[str, Field(min_length=1, max_length=128)]
DesiredState = Literal["run", "drain", "stop"]


class HandlerContract(Body):
    """The contract of a handler: the queue, timeout, retries and parameters of its tasks."""

    name: Name
    queue: Name | None = None
    timeout_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    retry: RetryPolicy | None = None
    params: Json | None = None
    documentation: Annotated[str, Field(max_length=10_000)] = ""


class RegisterWorker(Body):
    """A worker: where it runs, and the queues and handlers whose tasks it takes."""

    hostname: Annotated[str, Field(min_length=1, max_length=255)]
    pid: Annotated[int, Field(ge=0, lt=2**31)]
    queues: Annotated[list[Name], Field(min_length=1, max_length=1000)]
    handlers: Annotated[list[Name], Field(min_length=1, max_length=10_000)]
    concurrency: Annotated[int, Field(ge=1, le=10_000)] = 1
    contracts: Annotated[list[HandlerContract], Field(max_length=10_000)] = Field(default_factory=list)


class WorkerRegistered(Reply):
    """`version` is the server's. A worker that does not support the `protocol` must exit."""

    worker_id: str
    protocol: int
    version: str
    heartbeat_interval_seconds: float
    lost_after_seconds: float
    claim_wait_seconds: float
    max_body_bytes: int
    max_output_bytes: int
    log_max_bytes: int


class WorkerHeartbeat(Body):
    """Counts since the worker started; `stats` is shown unchanged. Omitted fields keep their values."""

    completed: Long | None = None
    failed: Long | None = None
    stats: Json | None = None
    running: Annotated[list[TaskId], Field(max_length=10_000)] = Field(default_factory=list)


class WorkerOrders(Reply):
    """`withdrawn` are the tasks of `running` that were revoked: the worker stops them and reports nothing."""

    withdrawn: list[str]
    wanted: DesiredState


class ReportDetails(Body):
    """Details of an attempt besides its result. `has_log` means that some of its log was sent."""

    has_log: bool = False
    peak_memory_bytes: Long | None = None
    cpu_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    metrics: Json | None = None


class ReportCreate(Body):
    """The result of an attempt. `error_types` are the names of the error's class and its base classes, nearest first.

    A failed attempt is retried unless it is `permanent`; giving a task back costs no attempt. `timed_out` means that
    the worker stopped the attempt at its timeout.
    """

    task_id: TaskId
    kind: Literal["completed", "failed", "given_back"]
    output: Json | None = None
    error: Annotated[str, Field(max_length=20_000)] | None = None
    permanent: bool = False
    retry_after_seconds: Annotated[float, Field(ge=0, le=604_800)] | None = None
    duration_ms: Long | None = None
    error_types: Annotated[list[Name], Field(max_length=50)] = Field(default_factory=list)
    details: ReportDetails | None = None
    timed_out: bool = False

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if self.kind != "completed" and self.output is not None:
            raise ValueError("only a completed task has an output; describe a failure in error")
        if self.kind == "completed" and self.error is not None:
            raise ValueError("a completed task has no error")
        return self


Reports = Annotated[list[ReportCreate], Field(max_length=MAX_BATCH)]


class ReportOutcome(Reply):
    """`accepted` and `over` need not be sent again: an attempt that is over was reported before or is no longer needed.

    `refused` gives the reason; the worker still holds the task and must report something else.
    """

    task_id: str
    outcome: Literal["accepted", "over", "refused"]
    reason: str | None = None


class ReportsTaken(Reply):
    """In the order of the reports."""

    outcomes: list[ReportOutcome]


class ClaimTasks(Body):
    """A claim with reports returns immediately; any other waits for a task or until it times out."""

    limit: Annotated[int, Field(ge=0, le=MAX_BATCH)]
    wait_seconds: Annotated[float, Field(ge=0, le=3600)] = 0
    reports: Reports = Field(default_factory=list)


class TaskCheckpoint(Reply):
    """The checkpoint of an earlier attempt."""

    checkpoint_id: Id
    phase: str
    data: Any = None
    artifacts: list[Any] | None = None


class ClaimedTask(Reply):
    """One attempt at a node. Its worker must report its result within `timeout_seconds`."""

    task_id: str
    job_id: Id
    node_id: str
    handler: str
    queue: str
    params: Json
    timeout_seconds: float
    retry_count: int
    dispatched_at: Time
    correlation_id: str | None = None
    trace_parent: str | None = None
    checkpoint: TaskCheckpoint | None = None


class HeldTasks(Reply):
    tasks: list[ClaimedTask]


class TasksClaimed(HeldTasks):
    """The worker holds these tasks as long as it sends heartbeats."""

    outcomes: list[ReportOutcome] = Field(default_factory=list)


class ProgressCreate(Body):
    task_id: TaskId
    current: Finite
    total: Finite | None = None
    message: Text | None = None


class WorkerCheckpoint(Body):
    """A checkpoint: a later attempt receives `data` and resumes after this phase."""

    task_id: TaskId
    phase: Name
    data: Json = Field(default_factory=dict)
    artifacts: list[Any] | None = None


class CheckpointStored(Reply):
    checkpoint_id: Id


class DiscardCheckpoint(Body):
    task_id: TaskId
    reason: Text


class CheckpointBefore(Reply):
    """The latest valid checkpoint before it; null if the attempt must start from the beginning."""

    checkpoint: TaskCheckpoint | None


class OpenSecrets(Body):
    """Sealed references in the parameters or the checkpoint of a task that the worker holds."""

    task_id: TaskId
    references: Annotated[list[Annotated[str, Field(max_length=100_000)]], Field(max_length=MAX_BATCH)]


class SecretsOpened(Reply):
    """The values by reference. Use them only to call the handler; do not store them."""

    values: dict[str, str]


class LogChunk(Body):
    """Task output from `offset` on, as `text` or as base64 `data`."""

    task_id: TaskId
    offset: Long
    text: str | None = None
    data: str | None = None

    @field_validator("data")
    @classmethod
    def _be_base64(cls, data: str | None) -> str | None:
        try:
            b64decode(data or "", validate=True)
        except NotBase64 as error:
            raise ValueError(f"should be base64: {error}") from error
        return data

    @model_validator(mode="after")
    def _have_one(self) -> Self:
        if (self.text is None) is (self.data is None):
            raise ValueError("give either text or data")
        return self

    @property
    def content(self) -> bytes:
        if self.data is not None:
            return b64decode(self.data)
        return (self.text or "").encode(errors="replace")


class LogTaken(Reply):
    """`size` is the stored size of the log: continue from there. `over` means that no more of this log is stored."""

    task_id: str
    outcome: Literal["accepted", "over"]
    size: int


class LogsTaken(Reply):
    logs: list[LogTaken]


class WorkerWanted(Reply):
    """The worker receives the request with its next heartbeat."""

    worker_id: str
    wanted: DesiredState
