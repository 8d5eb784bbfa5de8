"""When each node of a job waited and ran: a bar for every attempt, a strip for the children of a fan-out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final

from dagmaster.model.states import NODE_TERMINAL
from dagmaster.store import attempts as attempt_store
from dagmaster.store import node_counts
from dagmaster.store.connect import Connection
from dagmaster.store.nodes import NodeFilter, find_nodes
from dagmaster.web.ui.job_nodes import Definition, kind_of

Row = Mapping[str, Any]

MAX_ROWS: Final = 200
PARTS: Final = 80
MANY_NODES: Final = 5000  # With more nodes, the timeline is too long to read.


@dataclass(frozen=True, slots=True)
class Bar:
    """One attempt. It waits until `started_at`; without `ended_at` it is still running."""

    attempt: int
    status: str
    dispatched_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    worker_id: str | None = None

    @property
    def queued(self) -> float | None:
        return _seconds(self.dispatched_at, self.started_at or self.ended_at)

    @property
    def ran(self) -> float | None:
        return _seconds(self.started_at, self.ended_at)


@dataclass(frozen=True, slots=True)
class Strip:
    """The number of running children in equal parts of their fan-out's time, and the parts with failures."""

    running: Sequence[int]
    failed: Sequence[int]
    children: int
    since: datetime
    until: datetime


@dataclass(frozen=True, slots=True)
class GanttRow:
    node_id: str
    type: str
    status: str
    bars: Sequence[Bar]
    strip: Strip | None = None


@dataclass(frozen=True, slots=True)
class Gantt:
    rows: Sequence[GanttRow]
    since: datetime
    until: datetime
    is_open: bool
    has_more: bool
    offset: int


async def gantt_of(
    conn: Connection,
    job: Row,
    definition: Definition,
    *,
    nodes: int,
    offset: int,
    order: Sequence[str] = (),
    outcomes: Mapping[str, str] = MappingProxyType({}),
) -> Gantt:
    filter = NodeFilter(order=order)  # Nodes may have started at the same moment.
    rows = await find_nodes(conn, job["job_id"], filter, limit=MAX_ROWS + 1, offset=offset)
    visible = [row for row in rows[:MAX_ROWS] if row["dispatched_at"] or row["started_at"] or row["retry_count"]]
    is_open = job["completed_at"] is None
    now = datetime.now(UTC)
    since = job["started_at"] or job["created_at"]
    until = max(job["completed_at"] or now, since)
    fan_outs = [row["node_id"] for row in visible if kind_of(row, definition)[0] == "fan_out"]
    times = await node_counts.fan_out_times(conn, job["job_id"], fan_outs)
    spread = [row for row in visible if row["node_id"] in times]
    strips = {row["node_id"]: await _strip(conn, row, times[row["node_id"]], until) for row in spread}
    retried = [row["node_id"] for row in visible if row["retry_count"] > 0]
    earlier = await _earlier(conn, job, retried, is_small=nodes <= MANY_NODES)
    gantt_rows = []
    for row in visible:
        status = outcomes.get(row["node_id"], row["status"])
        last = replace(_last_bar(row, times.get(row["node_id"])), status=status)
        bars = [*earlier.get(row["node_id"], ()), last]
        type, _ = kind_of(row, definition)
        gantt_rows.append(GanttRow(row["node_id"], type, status, _in_order(bars), strips.get(row["node_id"])))
    return Gantt(gantt_rows, since, until, is_open, len(rows) > MAX_ROWS, offset)


def _last_bar(row: Row, fan: Row | None) -> Bar:
    """The newest attempt, from the node itself. A fan-out lasts as long as its children."""
    ended = row["completed_at"]
    if fan is not None:
        ended = fan["completed_at"] if row["status"] in NODE_TERMINAL else None
    number = row["retry_count"] + 1
    return Bar(number, row["status"], row["dispatched_at"], row["started_at"], ended, row["worker_id"])


def _in_order(bars: Sequence[Bar]) -> list[Bar]:
    """Each attempt once; a future attempt has no times yet."""
    by_number = {bar.attempt: bar for bar in bars if bar.dispatched_at or bar.started_at}
    return [by_number[number] for number in sorted(by_number)]


async def _earlier(conn: Connection, job: Row, node_ids: Sequence[str], *, is_small: bool) -> dict[str, list[Bar]]:
    """Attempts before the newest, as measured by their workers, otherwise from the timeline."""
    results = {row["task_id"]: row for row in await attempt_store.results_of_nodes(conn, job["job_id"], node_ids)}
    times = await attempt_store.attempt_times(conn, job, node_ids) if is_small else []
    measured = {row["task_id"]: _bar_of_times(row, results.get(row["task_id"])) for row in times}
    bars = {**{task_id: _bar_of_result(row) for task_id, row in results.items()}, **measured}
    owners = {row["task_id"]: row["node_id"] for row in [*results.values(), *times]}
    by_node: dict[str, list[Bar]] = {}
    for task_id, bar in bars.items():
        by_node.setdefault(owners[task_id], []).append(bar)
    return by_node


def _bar_of_times(row: Row, result: Row | None) -> Bar:
    if result is not None and result["execution_duration_ms"] is not None:
        return replace(_bar_of_result(result), dispatched_at=row["dispatched_at"])
    status = "failed" if row["is_failed"] else "completed" if row["ended_at"] else "running"
    worker = result["worker_id"] if result else None
    number = attempt_number(row["task_id"])
    return Bar(number, status, row["dispatched_at"], row["started_at"], row["ended_at"], worker)


def _bar_of_result(row: Row) -> Bar:
    ended = row["reported_at"]
    began = datetime.fromtimestamp(ended.timestamp() - (row["execution_duration_ms"] or 0) / 1000, UTC)
    is_over = row["status"] in ("completed", "failed")
    return Bar(attempt_number(row["task_id"]), row["status"], None, began, ended if is_over else None, row["worker_id"])


async def _strip(conn: Connection, node: Row, times: Row, until: datetime) -> Strip:
    since = node["started_at"] or times["started_at"] or until
    until = max(times["completed_at"] or until, since)
    rows = await node_counts.fan_out_density(conn, node["job_id"], node["node_id"], since, until, parts=PARTS)
    begun, ended, failed = [0] * (PARTS + 2), [0] * (PARTS + 2), [0] * (PARTS + 2)
    for row in rows:
        begun[row["part"]], ended[row["part"]], failed[row["part"]] = row["begun"], row["ended"], row["failed"]
    running, at_work = [], begun[0] - ended[0]
    for part in range(1, PARTS + 1):
        at_work += begun[part]
        running.append(at_work)  # A task that ended within this part was running in it.
        at_work -= ended[part]
    failed[PARTS] += failed[PARTS + 1]  # What ended at the very end.
    return Strip(running, failed[1 : PARTS + 1], sum(begun), since, until)


def attempt_number(task_id: str) -> int:
    """Counted from 1. Manually inserted results may have other ids."""
    last = task_id.rpartition("_")[2]
    return int(last) + 1 if last.isascii() and last.isdecimal() else 1


def _seconds(start: datetime | None, end: datetime | None) -> float | None:
    return max((end - start).total_seconds(), 0) if start and end else None
