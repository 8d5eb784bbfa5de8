"""The facts that an explanation needs besides the job itself, and its result."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Kind(StrEnum):
    """Every reason for the state of a node or a job."""

    ENDED = "ended"
    RUNNING = "running"
    EXPANDING = "expanding"
    GIVING_RESULT = "giving_result"
    WAITING_FOR_NODES = "waiting_for_nodes"
    WAITING_FOR_TIME = "waiting_for_time"
    WAITING_FOR_SIGNAL = "waiting_for_signal"
    WAITING_FOR_APPROVAL = "waiting_for_approval"
    WAITING_FOR_JOB = "waiting_for_job"
    WAITING_FOR_END = "waiting_for_end"
    RETRY = "retry"
    QUEUED = "queued"
    HELD_BY_MAX_PARALLEL = "held_by_max_parallel"
    BACK_PRESSURE = "back_pressure"
    PAUSED = "paused"
    NO_OWNER = "no_owner"
    ABOUT_TO_RUN = "about_to_run"


@dataclass(frozen=True, slots=True)
class Explanation:
    """One true sentence; `data` holds its facts, and under `also` the other reasons."""

    kind: Kind
    sentence: str
    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class OwnerFacts:
    owner_id: str | None = None
    beat_seconds_ago: float | None = None
    is_alive: bool = False


@dataclass(frozen=True, slots=True)
class Consumer:
    """A worker that consumes a queue; `handlers` is None for all handlers.

    `is_taking` is false for a drained worker. `stuck` slots are occupied by handlers that do not end.
    """

    worker_id: str
    handlers: frozenset[str] | None
    concurrency: int
    running: int
    stuck: int = 0
    is_taking: bool = True

    @property
    def is_free(self) -> bool:
        return self.running + self.stuck < self.concurrency

    def has(self, handler: str) -> bool:
        return self.handlers is None or handler in self.handlers


@dataclass(frozen=True, slots=True)
class QueueFacts:
    """`depth` counts the claimable tasks; `limit` is known for a queue that is closed because it is full.

    An `is_local` queue belongs to the program that runs the job; nobody else consumes it.
    """

    depth: int = 0
    limit: int | None = None
    consumers: tuple[Consumer, ...] = ()
    is_local: bool = False


@dataclass(frozen=True, slots=True)
class Progress:
    percent: float | None
    message: str | None


@dataclass(frozen=True, slots=True)
class Facts:
    """`ahead`: for each node whose task waits in a queue, how many tasks are claimed before it. Others by node, too."""

    owner: OwnerFacts
    orchestrators: int
    threshold_seconds: float
    queues: Mapping[str, QueueFacts] = field(default_factory=dict)
    ahead: Mapping[str, int] = field(default_factory=dict)
    holders: Mapping[str, str] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)
    progress: Mapping[str, Progress] = field(default_factory=dict)
    children: Mapping[str, int] = field(default_factory=dict)
    unregistered: frozenset[str] = frozenset()  # handlers that no worker has ever registered
    closed_queues: Collection[str] = ()  # to which the owner dispatches nothing
