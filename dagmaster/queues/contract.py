"""The messages between orchestrators and workers, and the protocol of a transport."""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, Protocol

from dagmaster.engine.messages import NO_MESSAGE, Report, TaskCompleted, TaskFailed, TaskLost
from dagmaster.ids import JobId, TaskId, WorkerId
from dagmaster.model.contracts import Contract
from dagmaster.store.task_reports import ReportedProgress


@dataclass(frozen=True, slots=True)
class TaskMessage:
    """One attempt of one node. `params` is JSON as the engine encoded it."""

    task_id: TaskId
    job_id: JobId
    node_id: str
    handler: str
    queue: str
    params: bytes
    timeout_seconds: float
    retry_count: int
    dispatched_at: datetime
    correlation_id: str | None = None
    trace_parent: str | None = None
    checkpoint_id: int | None = None
    checkpoint_phase: str | None = None
    checkpoint_data: bytes | None = None
    checkpoint_artifacts: bytes | None = None


ReportKind = Literal["completed", "failed", "given_back"]


@dataclass(frozen=True, slots=True)
class TaskReport:
    """How an attempt ended.

    `error_types` are the names of the exception's class and of its bases, the nearest first. `details` may hold
    `log_path`, `peak_memory_bytes`, `cpu_seconds` and `metrics`. `timed_out`: the worker stopped it at its timeout.
    """

    task_id: TaskId
    job_id: JobId
    node_id: str
    kind: ReportKind
    output: bytes | None = None
    error: str | None = None
    permanent: bool = False
    retry_after_seconds: float | None = None
    duration_ms: int | None = None
    error_types: tuple[str, ...] = ()
    details: Mapping[str, Any] | None = None
    timed_out: bool = False

    def message(self, worker_id: WorkerId, at: datetime) -> Report:
        """The engine's message for the report of this worker."""
        match self.kind:
            case "completed":
                output = self.output or b"{}"
                return TaskCompleted(self.node_id, self.task_id, worker_id, at, output, self.duration_ms, self.details)
            case "failed":
                return TaskFailed(
                    self.node_id,
                    self.task_id,
                    worker_id,
                    at,
                    self.error or NO_MESSAGE,
                    self.permanent,
                    self.retry_after_seconds,
                    self.duration_ms,
                    self.error_types,
                    self.details,
                    self.timed_out,
                )
            case "given_back":
                return TaskLost(self.node_id, self.task_id, worker_id, at, given_back=True)


@dataclass(frozen=True, slots=True)
class Registration:
    """A worker's registration: where it runs, and which tasks it takes."""

    hostname: str
    pid: int
    queues: tuple[str, ...]
    handlers: tuple[str, ...]
    concurrency: int
    contracts: tuple[Contract, ...] = ()


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A worker's counters since it started. `stats` is for display: running, stuck, memory."""

    completed: int = 0
    failed: int = 0
    stats: Mapping[str, Any] = field(default_factory=dict)


DesiredState = Literal["run", "drain", "stop"]


@dataclass(frozen=True, slots=True)
class Orders:
    """The requested state of a worker, and those of its tasks that it must stop."""

    withdrawn: frozenset[TaskId] = frozenset()
    desired_state: DesiredState = "run"


@dataclass(frozen=True, slots=True)
class SavedCheckpoint:
    """`data` and `artifacts` are JSON."""

    phase: str
    data: bytes
    artifacts: bytes | None = None
    checkpoint_id: int | None = None


@dataclass(frozen=True, slots=True)
class Recalled:
    """The cached result of an earlier task with the same parameters. `output` is JSON."""

    output: bytes
    job_id: JobId
    stored_at: datetime


class Link(Protocol):
    """A worker's connection to a transport. Delivers tasks at least once, under the lease of the worker's heartbeat.

    Each method may raise one of the transport's `lost` errors.
    """

    async def register(self, registration: Registration) -> WorkerId:
        """Register the worker; returns its new id."""

    async def beat(self, heartbeat: Heartbeat) -> bool:
        """Renew the lease of all tasks of the worker. False if it was declared lost: others have its tasks now."""

    async def exchange(self, reports: Sequence[TaskReport], limit: int) -> list[TaskMessage]:
        """Report finished tasks and claim up to `limit` tasks, in one transaction."""

    async def listen(self, on_tasks: Callable[[], None]) -> None:
        """Call `on_tasks` whenever tasks may wait."""

    async def tell_starts(self) -> None:
        """Tell the owners of claimed tasks that these have started, unless they end at once; until cancelled."""

    async def orders(self, task_ids: Sequence[TaskId]) -> Orders:
        """The desired state of this worker, and which of these tasks it must stop."""

    async def forgotten(self, known: Collection[TaskId]) -> list[TaskMessage]:
        """Tasks that this worker holds without knowing it, because the response to a claim was lost."""

    async def tell(self, task_id: TaskId, progress: ReportedProgress) -> None:
        """Report the progress of a task; ignored if this worker does not hold it."""

    async def save(self, task_id: TaskId, checkpoint: SavedCheckpoint) -> None:
        """Store a checkpoint. Raises TaskOver when the attempt is no longer this worker's."""

    async def add(self, task_id: TaskId, slices: Sequence[bytes]) -> None:
        """Add nodes to the task's own job (`model.dynamic_nodes`). Raises TaskOver like `save`."""

    async def discard(self, task_id: TaskId, checkpoint_id: int, reason: str) -> SavedCheckpoint | None:
        """Mark this checkpoint as unusable; returns the newest valid one before it, if any."""

    async def recall(self, task_id: TaskId, version: str) -> Recalled | None:
        """The valid cached result for this handler, version and parameters, if there is one."""

    async def remember(self, task_id: TaskId, version: str, output: bytes, seconds: float | None) -> None:
        """Cache the result of this task for others with the same parameters; `None` seconds means forever."""

    async def open_secrets(self, task_id: TaskId, references: Collection[str]) -> Mapping[str, str]:
        """The values of the sealed secrets of a task that this worker holds. Raises BrokenSeal."""

    async def leave(self, heartbeat: Heartbeat) -> None:
        """Deregister; the worker holds no tasks afterwards."""


class Transport(Protocol):
    """A worker's access to tasks. `waits`: a claim blocks until there is a task."""

    lost: tuple[type[Exception], ...]
    waits: bool
    handler_pool: Any  # connections for handlers; None where the worker has no database

    def open(self, worker_id: WorkerId | None) -> AbstractAsyncContextManager[Link]:
        """Connect, as the worker of this id or as one that is not registered yet."""


class LocalWorker(Protocol):
    """A worker in the orchestrator's own process: tasks for its free slots bypass the queue."""

    @property
    def worker_id(self) -> WorkerId: ...

    def reserve(self, queue: str, handler: str) -> bool:
        """Reserve a slot for such a task; False when none is free or older tasks wait in the queue."""

    def release(self, messages: Sequence[TaskMessage]) -> None:
        """Free the slots reserved for these tasks; whether they were claimed is unknown."""

    def start(self, message: TaskMessage) -> None:
        """Run a task in a reserved slot."""

    def expect_more(self, queues: Collection[str]) -> None:
        """Claim soon: tasks were put on these queues."""
