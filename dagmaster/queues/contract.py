"""What travels between orchestrators and workers, whatever carries it."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, Protocol

from dagmaster.model.contracts import Contract
from dagmaster.store.task_reports import Told


@dataclass(frozen=True, slots=True)
class TaskMessage:
    """One attempt of one node. `params` is JSON as the engine encoded it."""

    task_id: str
    job_id: int
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
    `log_path`, `peak_memory_bytes`, `cpu_seconds` and `metrics`. `timed_out`: the worker stopped it, its time was over.
    """

    task_id: str
    job_id: int
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


@dataclass(frozen=True, slots=True)
class Registration:
    """What a worker says of itself when it comes: where it runs, and what it takes."""

    hostname: str
    pid: int
    queues: tuple[str, ...]
    handlers: tuple[str, ...]
    concurrency: int
    contracts: tuple[Contract, ...] = ()


@dataclass(frozen=True, slots=True)
class Standing:
    """How a worker is, as its heartbeat tells it. `stats` is shown as it is: running, stuck, memory."""

    completed: int = 0
    failed: int = 0
    stats: Mapping[str, Any] = field(default_factory=dict)


DesiredState = Literal["run", "drain", "stop"]


@dataclass(frozen=True, slots=True)
class Orders:
    """What is wanted of a worker, and which of its tasks are no longer its to do."""

    withdrawn: frozenset[str] = frozenset()
    wanted: DesiredState = "run"


@dataclass(frozen=True, slots=True)
class SavedCheckpoint:
    """`data` and `artifacts` are JSON."""

    phase: str
    data: bytes
    artifacts: bytes | None = None
    checkpoint_id: int | None = None


@dataclass(frozen=True, slots=True)
class Recalled:
    """What an earlier task with the same parameters has given. `output` is JSON."""

    output: bytes
    job_id: int
    stored_at: datetime


class Link(Protocol):
    """A worker's side of a transport, as long as the connection lasts: at least once, under its heartbeat's lease.

    Each call may raise one of the transport's `lost`.
    """

    async def register(self, offer: Registration) -> str:
        """Come under a new name, which is returned."""

    async def beat(self, standing: Standing) -> bool:
        """Keep the lease of all that the worker holds. False when it was given up: its tasks are others' now."""

    async def exchange(self, reports: Sequence[TaskReport], limit: int) -> list[TaskMessage]:
        """Report what ended and claim up to `limit` tasks, in one transaction."""

    async def orders(self, task_ids: Sequence[str]) -> Orders:
        """Of these, the ones that are no longer this worker's to do; and whether it should go on."""

    async def forgotten(self, known: Collection[str]) -> list[TaskMessage]:
        """Tasks that were claimed for this worker and of which it does not know: the answer got lost."""

    async def tell(self, task_id: str, progress: Told) -> None:
        """How far a task is that this worker holds; of any other it is not kept."""

    async def save(self, task_id: str, checkpoint: SavedCheckpoint) -> None:
        """Returns when it is stored. Raises TaskOver when the attempt is no longer this worker's."""

    async def add(self, task_id: str, slices: Sequence[bytes]) -> None:
        """Nodes for the task's own job (`model.dynamic_nodes`). Returns when they are stored; raises TaskOver."""

    async def discard(self, task_id: str, checkpoint_id: int, reason: str) -> SavedCheckpoint | None:
        """This checkpoint cannot be taken up; the newest valid one before it, if there is one."""

    async def recall(self, task_id: str, version: str) -> Recalled | None:
        """A result that was remembered for this handler, version and parameters, if there is one that still counts."""

    async def remember(self, task_id: str, version: str, output: bytes, seconds: float | None) -> None:
        """What this task gives counts for others with the same parameters; None for ever."""

    async def open_secrets(self, task_id: str, references: Collection[str]) -> Mapping[str, str]:
        """The values of sealed secrets that a task of this worker is given. Raises BrokenSeal."""

    async def leave(self, standing: Standing) -> None:
        """Good-bye: nothing is held any more."""


class Transport(Protocol):
    """How a worker comes to its work. `waits`: a claim stays open until there is something to do."""

    lost: tuple[type[Exception], ...]
    waits: bool
    handler_pool: Any  # of connections for handlers; None where the worker has no database

    def open(self, worker_id: str | None) -> AbstractAsyncContextManager[Link]:
        """A connection, for a worker that is known under this name or not known yet."""


class LocalWorker(Protocol):
    """A worker in the orchestrator's own process: a task for a free slot goes to it without a queue."""

    @property
    def worker_id(self) -> str: ...

    def reserve(self, queue: str, handler: str) -> bool:
        """Whether a slot is free for such a task and nothing that waits is passed over; it is taken then."""

    def release(self, messages: Sequence[TaskMessage]) -> None:
        """Slots were reserved for these, but whether they were claimed is not known."""

    def start(self, message: TaskMessage) -> None:
        """Run it in a reserved slot."""

    def expect_more(self, queues: Collection[str]) -> None:
        """Tasks have been put on these queues."""
