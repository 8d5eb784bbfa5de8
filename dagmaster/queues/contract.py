"""What travels between orchestrators and workers, whatever carries it."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, Protocol


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
    `log_path`, `peak_memory_bytes`, `cpu_seconds` and `metrics`.
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


class Queue(Protocol):
    """A worker's side of a transport: at least once, under the lease that its heartbeat keeps."""

    async def exchange(self, reports: Sequence[TaskReport], limit: int) -> list[TaskMessage]:
        """Report what ended and claim up to `limit` tasks, in one transaction."""

    async def withdrawn(self, task_ids: Sequence[str]) -> set[str]:
        """Which of these are no longer this worker's to do."""

    async def forgotten(self, known: Collection[str]) -> list[TaskMessage]:
        """Tasks that were claimed for this worker and of which it does not know: the answer got lost."""


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
