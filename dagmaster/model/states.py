"""The states of jobs and nodes, and the legal moves between them."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar


class JobStatus(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class NodeStatus(StrEnum):
    PENDING = "pending"
    READY = "ready"
    DISPATCHED = "dispatched"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    SKIPPED = "skipped"


class TaskStatus(StrEnum):
    RECEIVED = "received"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"


class EndedBy(StrEnum):
    """How a node or an attempt ended; the status alone does not tell."""

    RESULT = "result"
    FAILURE = "failure"
    TIMEOUT = "timeout"
    LOST = "lost"
    GIVEN_BACK = "given_back"
    REVOKED = "revoked"  # in flight when its job failed
    CANCELLED = "cancelled"  # in flight when its job was cancelled
    SKIPPED = "skipped"


class JobEndedBy(StrEnum):
    """How a job ended, or why it is failing; the status alone does not tell."""

    RESULT = "result"
    FAILURE = "failure"  # of one of its nodes
    DEADLINE = "deadline"  # its timeout passed
    NO_PROGRESS = "no_progress"  # no progress for too long, and nothing to wait for
    UNPROCESSABLE = "unprocessable"  # its owner could not read, decide or write it
    CANCELLED = "cancelled"


class EventStatus(StrEnum):
    SUCCESS = "success"
    FAILURE = "failure"
    WARNING = "warning"
    INFO = "info"


JOB_TERMINAL = frozenset({JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.CANCELLED})
NODE_TERMINAL = frozenset({NodeStatus.COMPLETED, NodeStatus.FAILED, NodeStatus.SKIPPED})
NODE_SUCCESSFUL = frozenset({NodeStatus.COMPLETED, NodeStatus.SKIPPED})
NODE_IN_FLIGHT = frozenset({NodeStatus.DISPATCHED, NodeStatus.RUNNING})
ENDED_WITH_JOB = frozenset({EndedBy.REVOKED, EndedBy.CANCELLED})


S = TypeVar("S", JobStatus, NodeStatus)


@dataclass(frozen=True, eq=False)
class Move(Generic[S]):
    """A legal change of state; its name is the event that records it in the timeline.

    `ended_by` is the default way in which the node ended; None if it has not ended.
    """

    event: str
    sources: frozenset[S]
    target: S
    status: EventStatus = EventStatus.INFO
    ended_by: EndedBy | None = None


JOB_STARTED = Move("job_started", frozenset({JobStatus.PENDING}), JobStatus.RUNNING)
JOB_COMPLETED = Move("job_completed", frozenset({JobStatus.RUNNING}), JobStatus.COMPLETED, EventStatus.SUCCESS)
JOB_FAILED = Move("job_failed", frozenset({JobStatus.RUNNING}), JobStatus.FAILED, EventStatus.FAILURE)
JOB_CANCELLED = Move(
    "job_cancelled", frozenset({JobStatus.PENDING, JobStatus.RUNNING}), JobStatus.CANCELLED, EventStatus.WARNING
)
# The only way out of a terminal state: an operator retries a failed job.
JOB_REOPENED = Move("job_reopened", frozenset({JobStatus.FAILED}), JobStatus.RUNNING, EventStatus.WARNING)

NODE_READY = Move("node_ready", frozenset({NodeStatus.PENDING}), NodeStatus.READY)
NODE_DISPATCHED = Move("node_dispatched", frozenset({NodeStatus.READY}), NodeStatus.DISPATCHED)
NODE_STARTED = Move("node_started", frozenset({NodeStatus.DISPATCHED}), NodeStatus.RUNNING)
NODE_COMPLETED = Move(
    "node_completed", frozenset({NodeStatus.RUNNING}), NodeStatus.COMPLETED, EventStatus.SUCCESS, EndedBy.RESULT
)
NODE_FAILED = Move(
    "node_failed",
    frozenset({NodeStatus.READY, NodeStatus.DISPATCHED, NodeStatus.RUNNING}),
    NodeStatus.FAILED,
    EventStatus.FAILURE,
    EndedBy.FAILURE,
)
NODE_RETRYING = Move("node_retrying", frozenset({NodeStatus.FAILED}), NodeStatus.READY, EventStatus.WARNING)
NODE_SKIPPED = Move(
    "node_skipped",
    frozenset({NodeStatus.PENDING, NodeStatus.READY}),
    NodeStatus.SKIPPED,
    ended_by=EndedBy.SKIPPED,
)
# In a reopened job. Only finalizers run again after they have completed.
NODE_REOPENED = Move(
    "node_reopened", frozenset({NodeStatus.SKIPPED, NodeStatus.COMPLETED, NodeStatus.FAILED}), NodeStatus.PENDING
)

JOB_MOVES = (JOB_STARTED, JOB_COMPLETED, JOB_FAILED, JOB_CANCELLED, JOB_REOPENED)
NODE_MOVES = (
    NODE_READY,
    NODE_DISPATCHED,
    NODE_STARTED,
    NODE_COMPLETED,
    NODE_FAILED,
    NODE_RETRYING,
    NODE_SKIPPED,
    NODE_REOPENED,
)


def read_ended_by(status: NodeStatus, stored: str | None) -> EndedBy | None:
    """The stored value; rows of earlier versions have none, and their status implies it."""
    if stored is not None:
        return EndedBy(stored)
    return next((move.ended_by for move in NODE_MOVES if move.target is status), None)


# Alternative names in filters, and the stored names.
EVENT_ALIASES = {"node_running": "node_started", "node_retry": "node_retrying"}
