"""How far a job is, as it is shown."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from dagmaster.cli.output import between
from dagmaster.model.states import JOB_TERMINAL, NODE_TERMINAL, JobStatus, NodeStatus

# A job of a hundred thousand nodes is not counted eight times a second.
SHARE_OF_TIME = 5

Show = Callable[["JobView"], None]


@dataclass(frozen=True, slots=True)
class FanView:
    """The children of a fan-out, by state."""

    counts: Mapping[NodeStatus, int]
    retries: int = 0
    last_ended_at: datetime | None = None

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    @property
    def ended(self) -> int:
        return sum(self.counts.get(status, 0) for status in NODE_TERMINAL)

    @property
    def is_open(self) -> bool:
        return self.ended < self.total


@dataclass(frozen=True, slots=True)
class NodeView:
    node_id: str
    status: NodeStatus
    attempt: int = 1
    attempts: int = 1
    error: str | None = None
    not_before: datetime | None = None
    started_at: datetime | None = None
    completed_at: datetime | None = None
    now: datetime | None = None
    fan: FanView | None = None

    @property
    def shown_status(self) -> str:
        """A fan-out is at work as long as its children are; a node that waits for its next attempt is retrying."""
        if self.fan and self.fan.is_open and self.status is NodeStatus.COMPLETED:
            return NodeStatus.RUNNING
        if self.status is NodeStatus.READY and self.attempt > 1:
            return "retrying"
        return self.status

    @property
    def seconds(self) -> float | None:
        ended_at = self.completed_at
        if self.fan is not None:
            ended_at = None if self.fan.is_open else self.fan.last_ended_at or ended_at
        return between(self.started_at, ended_at or self.now)


@dataclass(frozen=True, slots=True)
class JobView:
    job_id: int
    workflow_id: str
    status: JobStatus
    nodes: Sequence[NodeView] = ()
    error: str | None = None
    result: Any = field(default=None, repr=False)
    seconds: float = 0.0

    @property
    def has_ended(self) -> bool:
        return self.status in JOB_TERMINAL
