"""A snapshot of a job's nodes, and the progress computed from it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from math import fsum

from dagmaster.model.outcome import ENDED, Children, Outcome, children_of, outcome_of
from dagmaster.model.states import JOB_TERMINAL, JobStatus, NodeStatus

ALMOST_ALL = 99.9


@dataclass(frozen=True, slots=True)
class FanSnapshot:
    """The children of a fan-out. `items` is their final number: they are created in slices."""

    items: int
    counts: Mapping[str, int]  # revoked and cancelled children are separate from failed ones
    retries: int = 0
    last_ended_at: datetime | None = None
    newest_started_at: datetime | None = None  # of the running children
    child_seconds: float | None = None  # average duration of the completed children

    @property
    def running(self) -> int:
        return self.counts.get(NodeStatus.RUNNING, 0)

    @property
    def left(self) -> int:
        return self.items - sum(number for status, number in self.counts.items() if status in ENDED)


@dataclass(frozen=True, slots=True)
class NodeSnapshot:
    """A node of the definition; `fan` is set for a fan-out with children; `added` counts the nodes its tasks added.

    `may_fail`: it or its children have failed, and the job continues without them.
    """

    status: NodeStatus
    dispatched_at: datetime | None = None
    started_at: datetime | None = None
    completed_at: datetime | None = None
    not_before: datetime | None = None
    fan: FanSnapshot | None = None
    added: Mapping[str, int] = field(default_factory=dict)
    may_fail: bool = False
    is_cancelled: bool = False  # in flight when its job ended

    @property
    def children(self) -> Children:
        of_fan: Mapping[str, int] = self.fan.counts if self.fan else {}
        ended_at = self.fan.last_ended_at if self.fan else None
        return children_of(of_fan, self.added, may_fail=self.may_fail, last_ended_at=ended_at)

    @property
    def outcome(self) -> Outcome:
        return Outcome.CANCELLED if self.is_cancelled else outcome_of(self.status, self.children)

    @property
    def open_added(self) -> int:
        return sum(number for status, number in self.added.items() if status not in ENDED)


@dataclass(frozen=True, slots=True)
class JobSnapshot:
    """A job with the nodes of its definition, at the time `now`."""

    status: JobStatus
    now: datetime
    nodes: Mapping[str, NodeSnapshot]
    completed_at: datetime | None = None
    paused_at: datetime | None = None


def percent_done(job: JobSnapshot) -> float:
    """The share of defined nodes that completed, were skipped, or failed and were allowed to. A fan-out counts by its
    children.

    New children do not lower it, because the number of items is known before the first child. The progress that a
    running task reports does not count. Added nodes count with the task that added them, each equally, so the value may
    fall. A failed or cancelled job keeps its last value.
    """
    if job.status is JobStatus.COMPLETED:
        return 100.0
    shares = [_share(node, job) for node in job.nodes.values()]
    # `fsum` is exact: the order of the rows does not change the result.
    percent = round(100 * fsum(shares) / max(len(shares), 1), 1)
    # Nodes skipped by a failure count as done while the finalizers run, but a failed job has not done all of them.
    is_all = bool(shares) and job.status not in JOB_TERMINAL and all(share == 1 for share in shares)
    return percent if is_all else min(percent, ALMOST_ALL)


def work_percent(job: JobSnapshot) -> float:
    """The share of completed nodes among all known nodes, items of fan-outs included.

    Skipped nodes are no work. Unlike `percent_done`, this falls when a fan-out learns the number of its items.
    """
    if job.status is JobStatus.COMPLETED:
        return 100.0
    done, known = known_work(job)
    return min(round(100 * done / known, 1), ALMOST_ALL) if known else 0.0


def known_work(job: JobSnapshot) -> tuple[int, int]:
    """The number of nodes that are done, and the known total."""
    done = known = 0
    for node in job.nodes.values():
        children = node.children
        items = node.fan.items if node.fan is not None else 0
        known += max(items + sum(node.added.values()), children.total) - children.counts.get(NodeStatus.SKIPPED, 0)
        done += children.counts.get(NodeStatus.COMPLETED, 0) + children.tolerated
        if node.status is not NodeStatus.SKIPPED:
            known += 1
            done += node.outcome.bucket == NodeStatus.COMPLETED or (node.status is NodeStatus.FAILED and node.may_fail)
    return done, known


def _share(node: NodeSnapshot, job: JobSnapshot) -> float:
    own = _own_share(node, job)
    if not node.added:
        return own
    return (own + _done(node.added, job)) / (1 + sum(node.added.values()))


def _own_share(node: NodeSnapshot, job: JobSnapshot) -> float:
    if node.fan is not None:
        return _done(node.fan.counts, job, may_fail=node.may_fail) / node.fan.items
    if node.status is NodeStatus.SKIPPED or (node.status is NodeStatus.FAILED and node.may_fail):
        return float(not _was_closed(node, job))
    return float(node.status is NodeStatus.COMPLETED)


def _done(counts: Mapping[str, int], job: JobSnapshot, *, may_fail: bool = False) -> int:
    """Children, and most added nodes, are skipped only by the end of their job, which revokes others."""
    also = () if job.status in JOB_TERMINAL else (NodeStatus.SKIPPED, NodeStatus.FAILED)[: 1 + may_fail]
    return counts.get(NodeStatus.COMPLETED, 0) + sum(counts.get(status, 0) for status in also)


def _was_closed(node: NodeSnapshot, job: JobSnapshot) -> bool:
    """Whether it was skipped or revoked only because its job ended."""
    if job.status not in JOB_TERMINAL or job.completed_at is None or node.completed_at is None:
        return False
    return node.completed_at >= job.completed_at
