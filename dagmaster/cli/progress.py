"""The progress of a job, for display."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Self

from dagmaster.cli.output import between
from dagmaster.ids import JobId
from dagmaster.model.durations import write_duration
from dagmaster.model.outcome import ENDED, Outcome
from dagmaster.model.states import JOB_TERMINAL, JobStatus, NodeStatus

# Polling takes at most a sixth of the time, so that jobs with many nodes are counted less often.
SHARE_OF_TIME = 5
FEW_SECONDS, MINUTE = 10, 60
SOON = "a few seconds"

Show = Callable[["JobView"], None]


@dataclass(frozen=True, slots=True)
class FanView:
    """The children of a fan-out by state; `items` is their final number."""

    counts: Mapping[str, int]
    retries: int = 0
    last_ended_at: datetime | None = None
    items: int = 0

    @property
    def total(self) -> int:
        return max(self.items, sum(self.counts.values()))

    @property
    def ended(self) -> int:
        return sum(number for status, number in self.counts.items() if status in ENDED)

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
    outcome: Outcome | None = None

    @classmethod
    def of(cls, row: Mapping[str, Any], now: datetime, fan: FanView | None) -> Self:
        """From a row with the names of the HTTP API."""
        retries = row["retry_count"]
        return cls(
            row["node_id"],
            NodeStatus(row["status"]),
            retries + 1,
            max(row["max_retries"], retries) + 1,
            row["last_error"],
            row["not_before"],
            row["started_at"],
            row["completed_at"],
            now,
            fan,
            row["outcome"],
        )

    @property
    def shown_status(self) -> str:
        """Its outcome; a node that waits for its next attempt is retrying."""
        if self.status is NodeStatus.READY and self.attempt > 1:
            return "retrying"
        return self.outcome or self.status

    @property
    def seconds(self) -> float | None:
        ended_at = self.completed_at
        if self.fan is not None:
            ended_at = None if self.fan.is_open else self.fan.last_ended_at or ended_at
        return between(self.started_at, ended_at or self.now)


@dataclass(frozen=True, slots=True)
class Outlook:
    """The progress and estimated end of a job at the time `now`.

    `percent` counts all known nodes; `overall_percent` counts a fan-out as one node.
    """

    percent: float
    now: datetime
    ends_at: datetime | None = None
    basis: str | None = None
    overdue_seconds: float = 0.0
    overall_percent: float | None = None

    @property
    def left(self) -> str:
        """Such as `about 3 min left`; empty if unknown. Without history it is a guess."""
        if self.ends_at is None:
            return ""
        if self.overdue_seconds >= FEW_SECONDS / 2:
            return f"{write_duration(self.overdue_seconds)} longer than usual"
        rounded = _rounded(between(self.now, self.ends_at) or 0.0)
        if self.basis != "history":
            return f"perhaps {rounded} left"
        return f"{rounded} left" if rounded == SOON else f"about {rounded} left"

    def __str__(self) -> str:
        return ", ".join(filter(None, (f"{self.percent:.1f} %", self.left)))


def _rounded(seconds: float) -> str:
    """Rounded to tens of seconds or to minutes: an estimate is no more exact."""
    if seconds < FEW_SECONDS:
        return SOON
    step = FEW_SECONDS if seconds < MINUTE - FEW_SECONDS / 2 else MINUTE
    return write_duration(max(round(seconds / step), 1) * step)


@dataclass(frozen=True, slots=True)
class JobView:
    job_id: JobId
    workflow_id: str
    status: JobStatus
    nodes: Sequence[NodeView] = ()
    error: str | None = None
    result: Any = field(default=None, repr=False)
    seconds: float = 0.0
    outlook: Outlook | None = None
    value: Any = field(default=None, repr=False)  # the return value of a workflow function

    @property
    def has_ended(self) -> bool:
        return self.status in JOB_TERMINAL
