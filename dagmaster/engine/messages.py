"""Everything that may change a job. All of it arrives as one of these."""

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
    """The job came into this owner's memory: start it, or go on where it stood."""


@dataclass(frozen=True, slots=True)
class Expand:
    """Make the next slice of a fan-out's children."""

    node_id: str


@dataclass(frozen=True, slots=True)
class Continue:
    """Run the nodes that were postponed: their values are at hand now, or a new batch has room for them."""


@dataclass(frozen=True, slots=True)
class TaskStarted:
    node_id: str
    task_id: str
    worker_id: str
    at: datetime


@dataclass(frozen=True, slots=True)
class TaskCompleted:
    """`output` is JSON, encoded once by the worker and carried as it is; a large one stays in its mail."""

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
    timed_out: bool = False  # its worker stopped it when its time was over


@dataclass(frozen=True, slots=True)
class TaskLost:
    """The worker that had the task is gone; `given_back` when it left in order, which costs no retry."""

    node_id: str
    task_id: str
    worker_id: str | None
    at: datetime
    given_back: bool = False


@dataclass(frozen=True, slots=True)
class TaskCheckpoint:
    """A phase of the attempt is done; the next attempt goes on behind it. `data` is JSON, carried as it is."""

    node_id: str
    task_id: str
    worker_id: str | None
    at: datetime
    phase: str
    data: Value | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TasksAdded:
    """A running task adds a slice of nodes to its own job; without `node_id` they come from outside."""

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
    """Somebody tells the job what its nodes may wait for. `data` is any JSON."""

    name: str
    data: Any
    at: datetime
    actor: str | None = None


@dataclass(frozen=True, slots=True)
class ApprovalDecision:
    """Somebody approves or rejects what an approval node asks for; `task_id` is of the attempt that asked."""

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
    """Start nothing more until told so; what runs may end."""

    actor: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Resume:
    actor: str | None = None


@dataclass(frozen=True, slots=True)
class ManualRetry:
    """An operator wants it tried again: this node, or with None all that failed.

    With `only`, of a failed job nothing but these nodes and what follows from them; the others stay as they are.
    """

    node_id: str | None = None
    actor: str | None = None
    only: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class QueueOpened:
    """There is room in this queue again."""

    queue: str


# The error of a task that gives none.
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
