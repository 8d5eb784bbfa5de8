from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagmaster.model.progress import ALMOST_ALL, FanSnapshot, JobSnapshot, NodeSnapshot, percent_done, work_percent
from dagmaster.model.states import NODE_MOVES, NODE_REOPENED, NODE_TERMINAL, JobStatus, NodeStatus

NOW = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
DONE = (NodeStatus.COMPLETED, NodeStatus.SKIPPED)


def plain(status: NodeStatus, ended_at: datetime = NOW) -> NodeSnapshot:
    return NodeSnapshot(status, completed_at=ended_at if status in NODE_TERMINAL else None)


def fan(items: int, status: NodeStatus = NodeStatus.RUNNING, **counts: int) -> NodeSnapshot:
    return NodeSnapshot(status, fan=FanSnapshot(items, {NodeStatus(name): n for name, n in counts.items()}))


def percent(*nodes: NodeSnapshot, status: JobStatus = JobStatus.RUNNING, ended_at: datetime | None = None) -> float:
    return percent_done(JobSnapshot(status, NOW, {str(at): node for at, node in enumerate(nodes)}, ended_at))


@pytest.mark.parametrize("total", [1, 2, 3, 7, 30, 999])
def test_without_fan_outs_progress_is_the_share_of_completed_or_skipped_nodes(total: int) -> None:
    for done in {*range(0, total, 1 + total // 50), total}:
        ended = [plain(DONE[at % 2]) for at in range(done)]
        nodes = ended + [plain(NodeStatus.RUNNING)] * (total - done)
        assert percent(*nodes) == round(100 * done / total, 1)


def test_a_fan_out_counts_by_its_ended_children() -> None:
    pending = plain(NodeStatus.PENDING)
    assert percent(plain(NodeStatus.RUNNING), pending) == 0.0
    assert percent(fan(8, ready=2), pending) == 0.0
    assert percent(fan(8, completed=2, running=2), pending) == 12.5
    assert percent(fan(8, NodeStatus.COMPLETED, completed=6, failed=1, running=1), pending) == 37.5
    assert percent(fan(8, NodeStatus.COMPLETED, completed=8), pending) == 50.0


def test_an_empty_or_skipped_fan_out_counts_as_done() -> None:
    assert percent(plain(NodeStatus.COMPLETED), plain(NodeStatus.PENDING)) == 50.0
    assert percent(plain(NodeStatus.SKIPPED), plain(NodeStatus.PENDING)) == 50.0


def test_a_tolerated_failure_counts_as_done() -> None:
    pending = plain(NodeStatus.PENDING)
    failed = replace(plain(NodeStatus.FAILED), may_fail=True)
    assert percent(failed, pending) == 50.0
    assert percent(plain(NodeStatus.FAILED), pending) == 0.0
    assert percent(replace(fan(4, completed=1, failed=1, running=2), may_fail=True), pending) == 25.0


def test_a_revoked_node_is_not_done_even_if_its_failure_is_tolerated() -> None:
    before, skipped = NOW - timedelta(seconds=9), plain(NodeStatus.SKIPPED)
    nodes = [replace(plain(NodeStatus.FAILED, at), may_fail=True) for at in (before, NOW)]
    assert percent(*nodes, skipped, skipped, status=JobStatus.CANCELLED, ended_at=NOW) == 25.0


def test_incomplete_progress_never_rounds_to_100() -> None:
    assert percent(fan(100_000, completed=99_999)) == 99.9
    assert percent(*[plain(NodeStatus.COMPLETED)] * 4999, plain(NodeStatus.RUNNING)) == 99.9
    assert percent(fan(100_000, completed=100_000)) == 100.0


@pytest.mark.parametrize("status", [JobStatus.FAILED, JobStatus.CANCELLED])
def test_nodes_skipped_by_the_jobs_end_are_not_done(status: JobStatus) -> None:
    before, ended_at = NOW - timedelta(seconds=9), NOW
    nodes = [
        plain(NodeStatus.COMPLETED, before),
        plain(NodeStatus.SKIPPED, before),
        plain(NodeStatus.FAILED, ended_at),
        fan(4, NodeStatus.COMPLETED, completed=1, skipped=2, failed=1),
        plain(NodeStatus.SKIPPED, ended_at),
    ]
    assert percent(*nodes, status=status, ended_at=ended_at) == 45.0


@pytest.mark.parametrize("status", [JobStatus.FAILED, JobStatus.CANCELLED])
def test_an_unsuccessful_job_never_shows_100(status: JobStatus) -> None:
    """Its deadline skipped open nodes; the finalizers ran afterwards and completed."""
    nodes = [plain(NodeStatus.SKIPPED, NOW - timedelta(seconds=9)), plain(NodeStatus.COMPLETED)]
    assert percent(*nodes, status=status, ended_at=NOW) == ALMOST_ALL


def test_a_completed_job_is_done_and_one_without_rows_is_not() -> None:
    assert percent(status=JobStatus.COMPLETED) == 100.0
    assert percent() == 0.0


# Properties


@dataclass
class World:
    """A job with any legal sequence of events."""

    plain: list[NodeStatus]
    items: list[int]
    children: list[list[NodeStatus]] = field(default_factory=list)
    fans: list[NodeStatus] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.children = [[] for _ in self.items]
        self.fans = [NodeStatus.PENDING for _ in self.items]

    def happenings(self) -> Iterator[tuple[str, int, int, NodeStatus]]:
        for at, status in enumerate(self.plain):
            yield from (("plain", at, 0, target) for target in targets(status))
        for at, items in enumerate(self.items):
            if len(self.children[at]) < items or (not items and self.fans[at] is NodeStatus.PENDING):
                yield "slice", at, 0, NodeStatus.READY
            for index, status in enumerate(self.children[at]):
                yield from (("child", at, index, target) for target in targets(status) if target != NodeStatus.SKIPPED)

    def happen(self, event: str, at: int, index: int, target: NodeStatus) -> None:
        match event:
            case "plain":
                self.plain[at] = target
            case "child":
                self.children[at][index] = target
            case _:
                statuses = self.children[at] + [NodeStatus.READY] * 2
                self.children[at] = statuses[: self.items[at]]
                is_made = len(self.children[at]) == self.items[at]
                self.fans[at] = NodeStatus.COMPLETED if is_made else NodeStatus.RUNNING

    def snapshot(self) -> JobSnapshot:
        nodes = [plain(status) for status in self.plain]
        for status, items, children in zip(self.fans, self.items, self.children, strict=True):
            counts: dict[str, int] = {state: children.count(state) for state in children}
            nodes.append(NodeSnapshot(status, fan=FanSnapshot(items, counts) if children else None))
        return JobSnapshot(JobStatus.RUNNING, NOW, {str(at): node for at, node in enumerate(nodes)})

    def is_done(self) -> bool:
        is_complete = all(len(statuses) == items for statuses, items in zip(self.children, self.items, strict=True))
        each = [*self.plain, *self.fans, *(child for children in self.children for child in children)]
        return is_complete and all(status in DONE for status in each)


def targets(status: NodeStatus) -> list[NodeStatus]:
    return [move.target for move in NODE_MOVES if status in move.sources and move is not NODE_REOPENED]


@given(
    nodes=st.integers(1, 4),
    items=st.lists(st.integers(0, 5), max_size=3),
    choices=st.lists(st.integers(0, 10_000), max_size=120),
)
def test_progress_never_falls_and_ends_at_100(nodes: int, items: list[int], choices: list[int]) -> None:
    world = World([NodeStatus.PENDING] * nodes, items)
    last = percent_done(world.snapshot())
    for choice in choices:
        possible = list(world.happenings())
        if not possible:
            break
        world.happen(*possible[choice % len(possible)])
        now = percent_done(world.snapshot())
        assert 0.0 <= last <= now <= 100.0
        assert (now == 100.0) == world.is_done()
        last = now


@given(nodes=st.lists(st.sampled_from(list(NodeStatus)), min_size=1, max_size=8), items=st.integers(1, 9))
def test_the_jobs_end_does_not_change_its_progress(nodes: list[NodeStatus], items: int) -> None:
    """Open nodes are skipped or revoked by it."""
    before = NOW - timedelta(seconds=1)
    open_job = [plain(status, before) for status in nodes] + [fan(items, completed=items // 2, ready=1)]
    closed = {NodeStatus.PENDING: NodeStatus.SKIPPED, NodeStatus.READY: NodeStatus.SKIPPED}
    ended_job = [
        plain(status, before) if status in NODE_TERMINAL else plain(closed.get(status, NodeStatus.FAILED), NOW)
        for status in nodes
    ] + [fan(items, NodeStatus.FAILED, completed=items // 2, skipped=1)]
    assert percent(*ended_job, status=JobStatus.FAILED, ended_at=NOW) == percent(*open_job)


def work(*nodes: NodeSnapshot, status: JobStatus = JobStatus.RUNNING) -> float:
    return work_percent(JobSnapshot(status, NOW, {str(at): node for at, node in enumerate(nodes)}))


def test_known_work_counts_each_item_of_a_fan_out() -> None:
    around = [plain(NodeStatus.COMPLETED), *[plain(NodeStatus.PENDING)] * 3]
    assert work(fan(5000, NodeStatus.COMPLETED, completed=50, ready=4950), *around) == 1.0


def test_skipped_nodes_are_neither_work_nor_done() -> None:
    nodes = [plain(NodeStatus.COMPLETED), plain(NodeStatus.SKIPPED), plain(NodeStatus.RUNNING)]
    assert work(*nodes) == 50.0


def test_known_work_is_complete_only_at_the_end() -> None:
    nodes = [plain(NodeStatus.COMPLETED)] * 3
    assert work(*nodes) == ALMOST_ALL
    assert work(*nodes, status=JobStatus.COMPLETED) == 100.0
