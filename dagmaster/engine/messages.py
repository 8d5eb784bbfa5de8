"""The messages that may change a job; there is no other way."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from dagmaster.engine.values import Value
from dagmaster.model.added_nodes import AddedDependency, AddedGroup, AddedNode


class TimerKind(StrEnum):
    RETRY = "retry"
    DISPATCH = "dispatch"
    TIMEOUT = "timeout"
    ZOMBIE = "zombie"
    WAKE = "wake"
    DEADLINE = "deadline"


@dataclass(frozen=True, slots=True)
class Load:
    """The job was loaded into this owner's memory: start it, or continue where it stopped."""


@dataclass(frozen=True, slots=True)
class Expand:
    """Create the next slice of a fan-out's children."""

    node_id: str


@dataclass(frozen=True, slots=True)
class Continue:
    """Run the postponed nodes: their values are loaded, or a new batch has room for them."""


@dataclass(frozen=True, slots=True)
class TaskStarted:
    node_id: str
    task_id: str
    worker_id: str
    at: datetime


@dataclass(frozen=True, slots=True)
class TaskCompleted:
    """`output` is JSON, encoded once by the worker and never decoded here; a large one stays in its mail."""

    node_id: str
    task_id: str
    worker_id: str | None
    at: datetime
    output: Value
    duration_ms: int | None = None
    details: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class TaskFailed:
    node_id: str
    task_id: str
    worker_id: str | None
    at: datetime
    error: str
    permanent: bool = False
    retry_after_seconds: float | None = None
    duration_ms: int | None = None
    error_types: tuple[str, ...] = ()
    details: Mapping[str, Any] | None = None
    timed_out: bool = False  # stopped by its worker at its timeout


@dataclass(frozen=True, slots=True)
class TaskLost:
    """The worker of the task is gone. `given_back`: it shut down in order, which costs no retry."""

    node_id: str
    task_id: str
    worker_id: str | None
    at: datetime
    given_back: bool = False


@dataclass(frozen=True, slots=True)
class TaskCheckpoint:
    """A phase of the attempt is done; the next attempt continues after it. `data` is JSON, never decoded here."""

    node_id: str
    task_id: str
    worker_id: str | None
    at: datetime
    phase: str
    data: Value | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TasksAdded:
    """A running task adds nodes to its own job; without `node_id` an external caller adds them."""

    node_id: str | None
    task_id: str | None
    worker_id: str | None
    at: datetime
    nodes: tuple[AddedNode, ...]
    groups: tuple[AddedGroup, ...] = ()
    dependencies: tuple[AddedDependency, ...] = ()
    actor: str | None = None


@dataclass(frozen=True, slots=True)
class TimerDue:
    """`node_id` is empty for a timer of the job itself."""

    kind: TimerKind
    node_id: str = ""
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class SignalSent:
    """A signal for the job's wait nodes. `data` is any JSON."""

    name: str
    data: Any
    at: datetime
    actor: str | None = None


@dataclass(frozen=True, slots=True)
class ApprovalDecision:
    """Approve or reject the request of an approval node; `task_id` is the attempt that made the request."""

    node_id: str
    task_id: str
    approved: bool
    at: datetime
    actor: str | None = None
    comment: str | None = None


@dataclass(frozen=True, slots=True)
class Cancel:
    actor: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Pause:
    """Start nothing more until resumed; running tasks may end."""

    actor: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Resume:
    actor: str | None = None


@dataclass(frozen=True, slots=True)
class ManualRetry:
    """An operator retries this node, or with None all failed nodes.

    With `only`, a failed job retries only these nodes and their successors; the others stay as they are.
    """

    node_id: str | None = None
    actor: str | None = None
    only: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class QueueOpened:
    """The queue has room again."""

    queue: str


# The error of a task that reports none.
NO_MESSAGE: Final = "failed without a message"

Report = TaskCompleted | TaskFailed | TaskLost
Message = (
    Load
    | Expand
    | Continue
    | TaskStarted
    | TaskCompleted
    | TaskFailed
    | TaskLost
    | TaskCheckpoint
    | TasksAdded
    | TimerDue
    | SignalSent
    | ApprovalDecision
    | Cancel
    | Pause
    | Resume
    | ManualRetry
    | QueueOpened
)
