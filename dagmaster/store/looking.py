"""What the pages look for: jobs by what is known of them, and signs that something has happened."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from dagmaster.model.outcome import Children, children_of, outcome_of
from dagmaster.model.states import JOB_TERMINAL, JobStatus, NodeStatus
from dagmaster.store.connect import Connection
from dagmaster.store.statements import fetch, run

Row = dict[str, Any]
Counts = Mapping[str, int]

KEEP_COUNTS: Final = 20_000  # jobs, and nodes of them that have children


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Of each thing that is given, only what fits. `since` and `until` are of when a job was created."""

    statuses: Sequence[str] = ()
    workflow_id: str | None = None
    submitted_by: str | None = None
    schedule_id: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    ended_since: datetime | None = None
    text: str | None = None

    @property
    def is_live(self) -> bool:
        """Whether only what has not ended is looked for."""
        return bool(self.statuses) and not JOB_TERMINAL.intersection(self.statuses)


async def last_event_id(conn: Connection) -> int:
    row = await (await run(conn, "last_event_id")).fetchone()
    return int(row["event_id"]) if row else 0


async def is_settled(conn: Connection) -> bool:
    row = await (await run(conn, "is_settled")).fetchone()
    return bool(row and row["is_settled"])


async def find_jobs(conn: Connection, wanted: JobFilter, *, limit: int, offset: int = 0) -> list[Row]:
    """The newest first."""
    values = {
        "statuses": list(wanted.statuses) or None,
        "is_live": wanted.is_live,
        "workflow_id": wanted.workflow_id,
        "submitted_by": wanted.submitted_by,
        "schedule_id": wanted.schedule_id,
        "since": wanted.since,
        "until": wanted.until,
        "ended_since": wanted.ended_since,
        "text": wanted.text,
        "pattern": literal(wanted.text) if wanted.text else None,
        "limit": limit,
        "offset": offset,
    }
    return await fetch(conn, "find_jobs", values)


async def waiting_of_jobs(conn: Connection, job_ids: Sequence[int]) -> dict[int, Row]:
    """Of those that wait for somebody's decision or signal, and for nothing else: `waits_for`, `node_id`, `signal`."""
    rows = await fetch(conn, "waiting_of_jobs", {"job_ids": list(job_ids)}) if job_ids else []
    return {row["job_id"]: row for row in rows}


async def has_more_nodes(conn: Connection, job_id: int, than: int) -> bool:
    row = await (await run(conn, "has_more_nodes", {"job_id": job_id, "than": than})).fetchone()
    return row is not None and bool(row["has_more"])


@dataclass(frozen=True, slots=True)
class NodesOfJob:
    """`counts` are by outcome, with children by status; `children` are of the nodes that have some."""

    counts: Counts
    children: Mapping[str, Children]


class NodeCounts:
    """How the nodes of jobs stand. Of jobs that have ended it is kept: nothing changes there any more.

    A list of jobs is looked at again and again, and each may have a hundred thousand nodes.
    """

    def __init__(self, keep: int = KEEP_COUNTS) -> None:
        self._ended: OrderedDict[tuple[int, datetime], NodesOfJob] = OrderedDict()
        self._keep, self._size = keep, 0

    async def of(self, conn: Connection, jobs: Sequence[Mapping[str, Any]]) -> dict[int, NodesOfJob]:
        """By job; `jobs` are rows with `job_id` and `completed_at`."""
        found = {job["job_id"]: self._ended.get((job["job_id"], job["completed_at"])) for job in jobs}
        unknown = [job_id for job_id, nodes in found.items() if nodes is None]
        counted = await nodes_of_jobs(conn, unknown) if unknown else {}
        for job in jobs:
            if job["job_id"] in counted and job["completed_at"] is not None:
                self._remember((job["job_id"], job["completed_at"]), counted[job["job_id"]])
        return {job_id: counted[job_id] if nodes is None else nodes for job_id, nodes in found.items()}

    async def tolerated(self, conn: Connection, jobs: Sequence[Mapping[str, Any]]) -> dict[int, int]:
        """How many nodes have failed in jobs that completed all the same; `jobs` also with `status`."""
        completed = [job for job in jobs if job["status"] == JobStatus.COMPLETED]
        known = await self.of(conn, completed)
        return {job_id: nodes.counts.get(NodeStatus.FAILED, 0) for job_id, nodes in known.items()}

    def _remember(self, ended: tuple[int, datetime], nodes: NodesOfJob) -> None:
        if ended in self._ended:
            return
        self._ended[ended] = nodes
        self._size += 1 + len(nodes.children)
        while self._size > self._keep:
            _, oldest = self._ended.popitem(last=False)
            self._size -= 1 + len(oldest.children)


async def nodes_of_jobs(conn: Connection, job_ids: Sequence[int]) -> dict[int, NodesOfJob]:
    counts: dict[int, dict[str, int]] = {job_id: {} for job_id in job_ids}
    parents: dict[tuple[int, str], list[Row]] = {}
    for row in await fetch(conn, "count_nodes_of_jobs", {"job_ids": list(job_ids)}):
        _add(counts[row["job_id"]], row["status"], row["nodes"])
        if row["parent_status"] is not None:
            parents.setdefault((row["job_id"], row["parent_node_id"]), []).append(row)
    children: dict[int, dict[str, Children]] = {job_id: {} for job_id in job_ids}
    for (job_id, node_id), rows in parents.items():
        found = children[job_id][node_id] = children_of_rows(rows)
        _add(counts[job_id], rows[0]["parent_status"], -1)
        _add(counts[job_id], outcome_of(rows[0]["parent_status"], found).bucket, 1)
    return {job_id: NodesOfJob(counts[job_id], children[job_id]) for job_id in job_ids}


def children_of_rows(rows: Sequence[Row]) -> Children:
    """Of rows with `status`, `nodes`, `is_added`, `may_fail` and `last_ended_at`."""
    fan, added = ({row["status"]: row["nodes"] for row in rows if row["is_added"] is kind} for kind in (False, True))
    ended = max((row["last_ended_at"] for row in rows if row["last_ended_at"]), default=None)
    return children_of(fan, added, may_fail=any(row["may_fail"] for row in rows), last_ended_at=ended)


def _add(counts: dict[str, int], status: str, number: int) -> None:
    counts[status] = counts.get(status, 0) + number


def literal(text: str) -> str:
    """What people type is meant as it stands."""
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
