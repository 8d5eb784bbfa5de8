"""What a worker that comes over HTTP says, and what it is told."""

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
    """What a handler promises: where its tasks go, how long they may take, what they are given."""

    name: Name
    queue: Name | None = None
    timeout_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    retry: RetryPolicy | None = None
    params: Json | None = None
    documentation: Annotated[str, Field(max_length=10_000)] = ""


class RegisterWorker(Body):
    """Where it runs, and what it takes: tasks of these queues for these handlers."""

    hostname: Annotated[str, Field(min_length=1, max_length=255)]
    pid: Annotated[int, Field(ge=0, lt=2**31)]
    queues: Annotated[list[Name], Field(min_length=1, max_length=1000)]
    handlers: Annotated[list[Name], Field(min_length=1, max_length=10_000)]
    concurrency: Annotated[int, Field(ge=1, le=10_000)] = 1
    contracts: Annotated[list[HandlerContract], Field(max_length=10_000)] = Field(default_factory=list)


class WorkerRegistered(Reply):
    """`version` is the server's. A worker that does not know the `protocol` must not go on."""

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
    """Counts since the worker began; `stats` is shown as it is. What is left out stays as it was."""

    completed: Long | None = None
    failed: Long | None = None
    stats: Json | None = None
    running: Annotated[list[TaskId], Field(max_length=10_000)] = Field(default_factory=list)


class WorkerOrders(Reply):
    """`withdrawn` are those of `running` that are no longer this worker's to do: it stops them and reports nothing."""

    withdrawn: list[str]
    wanted: DesiredState


class ReportDetails(Body):
    """What is known of an attempt besides its result. `has_log`: something of its log was sent."""

    has_log: bool = False
    peak_memory_bytes: Long | None = None
    cpu_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    metrics: Json | None = None


class ReportCreate(Body):
    """How an attempt ended. `error_types` are the names of the error's class and of its bases, the nearest first.

    A failed attempt is tried again unless it is `permanent`; one that is given back costs none. `timed_out` says that
    the worker stopped it because its time was over.
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
            raise ValueError("only a completed task has an output; say what went wrong in error")
        if self.kind == "completed" and self.error is not None:
            raise ValueError("a completed task has no error")
        return self


Reports = Annotated[list[ReportCreate], Field(max_length=MAX_BATCH)]


class ReportOutcome(Reply):
    """`accepted` and `over` need not be sent again: an attempt that is over was heard before, or is needed no more.

    `refused` says why; the attempt is still this worker's, which has to report something else.
    """

    task_id: str
    outcome: Literal["accepted", "over", "refused"]
    reason: str | None = None


class ReportsTaken(Reply):
    """In the order of the reports."""

    outcomes: list[ReportOutcome]


class ClaimTasks(Body):
    """A claim that brings reports is answered at once; any other waits until there is a task, or the time is over."""

    limit: Annotated[int, Field(ge=0, le=MAX_BATCH)]
    wait_seconds: Annotated[float, Field(ge=0, le=3600)] = 0
    reports: Reports = Field(default_factory=list)


class TaskCheckpoint(Reply):
    """How far an earlier attempt got."""

    checkpoint_id: Id
    phase: str
    data: Any = None
    artifacts: list[Any] | None = None


class ClaimedTask(Reply):
    """One attempt of one node. Its worker has to report its end within `timeout_seconds`."""

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
    """The tasks are this worker's now, as long as it beats."""

    outcomes: list[ReportOutcome] = Field(default_factory=list)


class ProgressCreate(Body):
    task_id: TaskId
    current: Finite
    total: Finite | None = None
    message: Text | None = None


class WorkerCheckpoint(Body):
    """A phase is done: a later attempt is given `data` and goes on behind it."""

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
    """The newest valid one before it; null when the attempt has to begin anew."""

    checkpoint: TaskCheckpoint | None


class OpenSecrets(Body):
    """Sealed references among the parameters, or in the checkpoint, of a task that the worker holds."""

    task_id: TaskId
    references: Annotated[list[Annotated[str, Field(max_length=100_000)]], Field(max_length=MAX_BATCH)]


class SecretsOpened(Reply):
    """The values by reference. They are for the handler's call, and for nothing else: keep them nowhere."""

    values: dict[str, str]


class LogChunk(Body):
    """What a task has written from `offset` on, as `text` or as base64 `data`."""

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
    """`size` is how much of the log there is: go on from there. `over`: nothing more of this task is kept."""

    task_id: str
    outcome: Literal["accepted", "over"]
    size: int


class LogsTaken(Reply):
    logs: list[LogTaken]


class WorkerWanted(Reply):
    """The worker hears of it with its next heartbeat."""

    worker_id: str
    wanted: DesiredState
