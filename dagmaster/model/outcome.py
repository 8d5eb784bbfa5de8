"""The state of a node together with its children, as people and programs see it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final, TypeVar

from dagmaster.model.states import ENDED_WITH_JOB, NODE_TERMINAL, NodeStatus

S = TypeVar("S", bound=str)


class Outcome(StrEnum):
    """The states of a node, and the combined results of its children."""

    PENDING = "pending"
    READY = "ready"
    DISPATCHED = "dispatched"
    RUNNING = "running"
    COMPLETED = "completed"
    COMPLETED_WITH_FAILURES = "completed_with_failures"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"

    @property
    def bucket(self) -> str:
        """The count it belongs to: tolerated failures are already counted with the children."""
        return Outcome.COMPLETED if self is Outcome.COMPLETED_WITH_FAILURES else self


ENDED: Final = frozenset({*NODE_TERMINAL, Outcome.COMPLETED_WITH_FAILURES, Outcome.CANCELLED})


@dataclass(frozen=True, slots=True)
class Children:
    """The children of a fan-out and the nodes that a task has added, by status.

    `tolerated` of the failed ones were allowed to fail. `stopped` did not run because their job ended. `last_ended_at`
    is the latest end so far.
    """

    counts: Mapping[str, int] = field(default_factory=dict)
    tolerated: int = 0
    stopped: int = 0
    last_ended_at: datetime | None = None

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    @property
    def failed(self) -> int:
        return self.counts.get(NodeStatus.FAILED, 0)

    @property
    def open(self) -> int:
        return sum(number for status, number in self.counts.items() if status not in ENDED)


NO_CHILDREN: Final = Children()


def end_of(completed_at: datetime | None, children: Children = NO_CHILDREN) -> datetime | None:
    """When the node and the last of its children had ended; None while one of them has not."""
    if completed_at is None or children.open:
        return None
    return max(completed_at, children.last_ended_at or completed_at)


def outcome_of(status: str, children: Children = NO_CHILDREN, ended_by: str | None = None) -> Outcome:
    """A fan-out completes as soon as it has expanded; its outcome is that of its children.

    A node that was in flight when its job ended did not fail.
    """
    if ended_by in ENDED_WITH_JOB:
        return Outcome.CANCELLED
    if status != NodeStatus.COMPLETED:
        return Outcome(status)
    if children.open:
        return Outcome.RUNNING
    if children.failed > children.tolerated:
        return Outcome.FAILED
    if children.stopped:
        return Outcome.CANCELLED
    return Outcome.COMPLETED_WITH_FAILURES if children.failed else Outcome.COMPLETED


def children_of(
    fan: Mapping[S, int], added: Mapping[S, int], *, may_fail: bool = False, last_ended_at: datetime | None = None
) -> Children:
    """Combine the children of a fan-out with added nodes. A child is skipped only by the end of its job."""
    of_fan = {str(status): number for status, number in fan.items()}
    counts = dict(of_fan)
    for status, number in added.items():
        counts[str(status)] = counts.get(str(status), 0) + number
    stopped = of_fan.get(NodeStatus.SKIPPED, 0) + of_fan.get(Outcome.CANCELLED, 0)
    return Children(counts, of_fan.get(NodeStatus.FAILED, 0) if may_fail else 0, stopped, last_ended_at)


def count_outcomes(nodes: Iterable[tuple[Outcome, Children]]) -> dict[str, int]:
    """Nodes by outcome, and their children by status."""
    counts: dict[str, int] = {}
    for outcome, children in nodes:
        for name, number in ((outcome.bucket, 1), *children.counts.items()):
            counts[str(name)] = counts.get(str(name), 0) + number
    return counts
