"""The displayed state of the job, such as outcomes, counts, progress and estimate, compared with a simple count.

The snapshot is built from the rows like the statement `job_snapshot` does.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

import orjson

from dagmaster.explain.estimate import TIMED, Basis, Usual, estimate
from dagmaster.model import progress as shown
from dagmaster.model.graph import Graph
from dagmaster.model.outcome import Outcome, count_outcomes
from dagmaster.model.progress import FanSnapshot, JobSnapshot, NodeSnapshot
from dagmaster.model.states import NODE_TERMINAL, EndedBy, JobStatus, NodeStatus
from dagmaster.model.workflow import CHILD_SEPARATOR
from simulation.cases import may_fail
from simulation.ground import Ground, require
from simulation.store import NodeRow, Store

# A full check costs as much as a step: every so many changes are enough, plus the last one, and those in which
# children are created or end while their fan-out still creates others.
EVERY = 12
USUAL_SECONDS = 2.0


@dataclass(slots=True)
class Family:
    """A node of the definition with the children of its fan-out, and all nodes that its tasks have added."""

    row: NodeRow
    is_tolerant: bool
    children: list[NodeRow] = field(default_factory=list)
    added: list[NodeRow] = field(default_factory=list)

    @property
    def items(self) -> int:
        """The number of existing and future children."""
        count = orjson.loads(self.row.output)["fan_out_count"] if self.children and self.row.output else 0
        return max(count, len(self.children))

    @property
    def everybody(self) -> Sequence[NodeRow]:
        return (self.row, *self.children, *self.added)


class Work(NamedTuple):
    done: int
    known: int


class ShownProgress:
    """The last displayed values, and the amount of work then."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._usual = _usual_times(ground)
        self._changes = 0
        self._percent, self._work, self._rows = 0.0, Work(0, 0), 0

    def check(self, changed: Sequence[NodeRow], *, is_reopened: bool) -> None:
        """Check after a change; a reopened job has less work done than before."""
        if is_reopened:
            self._percent, self._work = 0.0, Work(0, 0)
        self._changes += 1
        store = self._ground.store
        if self._changes % EVERY and not store.is_over and not any(_is_early(row, store) for row in changed):
            return
        families = families_of(self._ground)
        job = snapshot_of(store, families, self._ground.now)
        outcomes = {name: plain_outcome(family) for name, family in families.items()}
        for name, family in families.items():
            if family.children or family.added or family.row.ended_by is EndedBy.CANCELLED:
                actual, outcome = job.nodes[name].outcome, outcomes[name]
                require(actual is outcome, "{} is shown as {}, it is {}: {}", name, actual, outcome, family)
        self._check_progress(job, Work(*_plain_work(families, outcomes)))
        if store.is_over:
            _check_counts(job, families, outcomes)
        elif store.job.paused_at is None:
            _check_estimate(self._ground.case.blueprint.graph, job, self._usual)

    def _check_progress(self, job: JobSnapshot, work: Work) -> None:
        """Progress falls only when more work becomes known, and is complete only at the end."""
        store, work_percent, percent = self._ground.store, shown.work_percent(job), shown.percent_done(job)
        is_all = store.job.status is JobStatus.COMPLETED
        expected = 100.0 if is_all else min(100 * work.done / max(work.known, 1), 99.9)
        require(
            abs(work_percent - expected) < 0.051,
            "{} percent of the work are shown as done, it is {}",
            work_percent,
            work,
        )
        for each in (percent, work_percent):
            require(0 <= each <= 100 and (each == 100) is is_all, "{} percent of a job that is {}", each, job.status)
        added = sum(row.added_by is not None for row in store.nodes.values())
        if added <= self._rows:
            # By time alone, a node that a branch skips at the very end looks as if the end had closed it.
            has_fallen = percent < self._percent and not store.is_over
            require(not has_fallen, "{} percent are done, {} were before", percent, self._percent)
            is_less = work.done < self._work.done
            require(not is_less, "{} nodes are done, {} were before", work.done, self._work.done)
        self._percent, self._work, self._rows = percent, work, added


def _is_early(row: NodeRow, store: Store) -> bool:
    return row.parent is not None and store.nodes[row.parent].status is NodeStatus.RUNNING


def _usual_times(ground: Ground) -> dict[str, Usual]:
    timed = [node for node in ground.case.blueprint.graph.nodes.values() if node.type in TIMED]
    return {node.node_id: Usual(USUAL_SECONDS, items=len(ground.case.items.get(node.node_id, ()))) for node in timed}


def families_of(ground: Ground) -> dict[str, Family]:
    workflow, families = ground.case.blueprint.workflow, {}
    for row in ground.store.nodes.values():
        if row.added_by is None and row.parent is None:
            families[row.node_id] = Family(row, may_fail(row.node_id, workflow))
        elif row.added_by is None and row.parent is not None:
            families[row.parent].children.append(row)
        else:
            families[row.node_id.partition(".")[0].partition(CHILD_SEPARATOR)[0]].added.append(row)
    return families


def snapshot_of(store: Store, families: Mapping[str, Family], now: datetime) -> JobSnapshot:
    nodes = {name: _node(family) for name, family in families.items()}
    return JobSnapshot(store.job.status, now, nodes, store.job.completed_at, store.job.paused_at)


def _node(family: Family) -> NodeSnapshot:
    row, counts = family.row, Counter(map(_shown_status, family.children))
    has_failed = _shown_status(row) == NodeStatus.FAILED or NodeStatus.FAILED in counts
    return NodeSnapshot(
        row.status,
        row.dispatched_at,
        row.started_at,
        row.completed_at,
        row.not_before,
        _fan(family, counts) if family.children else None,
        Counter(map(_shown_status, family.added)),
        family.is_tolerant and has_failed,
        is_cancelled=row.ended_by is EndedBy.CANCELLED,
    )


def _fan(family: Family, counts: Mapping[str, int]) -> FanSnapshot:
    running = [row.started_at for row in family.children if row.status is NodeStatus.RUNNING and row.started_at]
    ended = [row.completed_at for row in family.children if row.completed_at is not None]
    retries = sum(row.attempt for row in family.children)
    return FanSnapshot(family.items, counts, retries, max(ended, default=None), max(running, default=None))


def _shown_status(row: NodeRow) -> str:
    return str(EndedBy.CANCELLED if row.ended_by is EndedBy.CANCELLED else row.status)


# The same computed differently, from the rows.


def plain_outcome(family: Family) -> Outcome:
    """It runs while any part does; then a permanent failure decides, unless it was allowed."""
    row = family.row
    if row.ended_by is EndedBy.CANCELLED:
        return Outcome.CANCELLED
    if row.status is not NodeStatus.COMPLETED:
        return Outcome(row.status)
    if any(member.status not in NODE_TERMINAL for member in family.everybody):
        return Outcome.RUNNING
    failed = [member for member in family.everybody if _has_failed(member)]
    if any(member.added_by is not None or not family.is_tolerant for member in failed):
        return Outcome.FAILED
    if any(child.ended_by in (EndedBy.CANCELLED, EndedBy.SKIPPED) for child in family.children):
        return Outcome.CANCELLED
    return Outcome.COMPLETED_WITH_FAILURES if failed else Outcome.COMPLETED


def _has_failed(row: NodeRow) -> bool:
    return row.status is NodeStatus.FAILED and row.ended_by is not EndedBy.CANCELLED


def _plain_work(families: Mapping[str, Family], outcomes: Mapping[str, Outcome]) -> tuple[int, int]:
    """Skipped nodes are no work; an allowed failure counts as done."""
    done = known = 0
    for name, family in families.items():
        rows = [row for row in family.everybody if row.status is not NodeStatus.SKIPPED]
        known += len(rows) + family.items - len(family.children)
        for row in rows:
            is_done = row.status is NodeStatus.COMPLETED
            if row is family.row:
                is_done = outcomes[name] in (Outcome.COMPLETED, Outcome.COMPLETED_WITH_FAILURES)
            done += is_done or (_has_failed(row) and family.is_tolerant and row.added_by is None)
    return done, known


def _check_counts(job: JobSnapshot, families: Mapping[str, Family], outcomes: Mapping[str, Outcome]) -> None:
    """Cancelled nodes are counted as such, and each node once."""
    counts = Counter(outcome.bucket for outcome in outcomes.values())
    counts.update(_shown_status(row) for family in families.values() for row in (*family.children, *family.added))
    actual = count_outcomes((node.outcome, node.children) for node in job.nodes.values())
    require(actual == counts, "the nodes are counted as {}, they are {}", actual, counts)
    if job.status is JobStatus.CANCELLED:
        stopped = sum(row.ended_by is EndedBy.CANCELLED for family in families.values() for row in family.everybody)
        require(actual.get("cancelled", 0) >= stopped, "{} were cancelled, counted are {}", stopped, actual)


def _check_estimate(graph: Graph, job: JobSnapshot, usual: Mapping[str, Usual]) -> None:
    """The end is in the future, and the delay is correct."""
    result = estimate(graph, job, usual)
    if result is None or result.basis is not Basis.HISTORY:
        return
    late = max(_overtime(job), default=0.0)
    overdue = result.overdue.total_seconds()
    require(result.ends_at >= job.now, "it should have ended at {}", result.ends_at)
    require(abs(overdue - max(late, 0.0)) < 0.001, "it is {} s late, said are {} s", late, overdue)


def _overtime(job: JobSnapshot) -> Iterator[float]:
    for node in job.nodes.values():
        if node.status is NodeStatus.RUNNING and node.fan is None and node.started_at is not None:
            yield (job.now - node.started_at).total_seconds() - USUAL_SECONDS
