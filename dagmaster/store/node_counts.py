"""Counts of nodes: by status, by fan-out, and by the task that added them."""

from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from dagmaster.ids import JobId, NodeId
from dagmaster.model.added_nodes import OUTSIDE
from dagmaster.model.outcome import Children, children_of, outcome_of
from dagmaster.model.states import JobStatus, NodeStatus
from dagmaster.store.connect import Connection, Row
from dagmaster.store.statements import fetch

Counts = Mapping[str, int]
KEEP_COUNTS: Final = 20_000  # jobs, and their nodes with children


@dataclass(frozen=True, slots=True)
class NodesOfJob:
    """`counts` are by outcome, with children by status; `children` only has nodes with children."""

    counts: Counts
    children: Mapping[str, Children]


class NodeCounts:
    """Cached counts of jobs. Only ended jobs are cached, because they no longer change.

    Lists of jobs are refreshed often, and each job may have a hundred thousand nodes.
    """

    def __init__(self, keep: int = KEEP_COUNTS) -> None:
        self._ended: OrderedDict[tuple[JobId, datetime], NodesOfJob] = OrderedDict()
        self._keep, self._size = keep, 0

    async def of(self, conn: Connection, jobs: Sequence[Mapping[str, Any]]) -> dict[JobId, NodesOfJob]:
        """By job; `jobs` are rows with `job_id` and `completed_at`."""
        known = {job["job_id"]: self._ended.get((job["job_id"], job["completed_at"])) for job in jobs}
        unknown = [job_id for job_id, nodes in known.items() if nodes is None]
        counted = await nodes_of_jobs(conn, unknown) if unknown else {}
        for job in jobs:
            if job["job_id"] in counted and job["completed_at"] is not None:
                self._remember((job["job_id"], job["completed_at"]), counted[job["job_id"]])
        return {job_id: counted[job_id] if nodes is None else nodes for job_id, nodes in known.items()}

    async def tolerated(self, conn: Connection, jobs: Sequence[Mapping[str, Any]]) -> dict[JobId, int]:
        """The number of failed nodes in jobs that completed anyway; `jobs` also need `status`."""
        completed = [job for job in jobs if job["status"] == JobStatus.COMPLETED]
        known = await self.of(conn, completed)
        return {job_id: nodes.counts.get(NodeStatus.FAILED, 0) for job_id, nodes in known.items()}

    def _remember(self, ended: tuple[JobId, datetime], nodes: NodesOfJob) -> None:
        if ended in self._ended:
            return
        self._ended[ended] = nodes
        self._size += 1 + len(nodes.children)
        while self._size > self._keep:
            _, oldest = self._ended.popitem(last=False)
            self._size -= 1 + len(oldest.children)


async def nodes_of_jobs(conn: Connection, job_ids: Sequence[JobId]) -> dict[JobId, NodesOfJob]:
    counts: dict[JobId, Counter[str]] = {job_id: Counter() for job_id in job_ids}
    parents: dict[tuple[JobId, str], list[Row]] = {}
    for row in await fetch(conn, "count_nodes_of_jobs", {"job_ids": list(job_ids)}):
        counts[row["job_id"]][row["status"]] += row["nodes"]
        if row["parent_status"] is not None:
            parents.setdefault((row["job_id"], row["parent_node_id"]), []).append(row)
    children: dict[JobId, dict[str, Children]] = {job_id: {} for job_id in job_ids}
    for (job_id, node_id), rows in parents.items():
        of_node = children[job_id][node_id] = children_of_rows(rows)
        counts[job_id][rows[0]["parent_status"]] -= 1
        counts[job_id][outcome_of(rows[0]["parent_status"], of_node).bucket] += 1
    return {job_id: NodesOfJob(counts[job_id], children[job_id]) for job_id in job_ids}


def children_of_rows(rows: Sequence[Row]) -> Children:
    """From rows with `status`, `nodes`, `is_added`, `may_fail` and `last_ended_at`."""
    fan, added = ({row["status"]: row["nodes"] for row in rows if row["is_added"] is kind} for kind in (False, True))
    ended = max((row["last_ended_at"] for row in rows if row["last_ended_at"]), default=None)
    return children_of(fan, added, may_fail=any(row["may_fail"] for row in rows), last_ended_at=ended)


async def has_more_nodes(conn: Connection, job_id: JobId, than: int) -> bool:
    [row] = await fetch(conn, "has_more_nodes", {"job_id": job_id, "than": than})
    return bool(row["has_more"])


async def count_folded(conn: Connection, job_id: JobId) -> list[Row]:
    """By the node in which they are drawn, and by status."""
    return await fetch(conn, "count_folded", {"job_id": job_id})


async def count_children(conn: Connection, job_id: JobId, node_id: NodeId) -> list[Row]:
    return await fetch(conn, "page_count_children", {"job_id": job_id, "node_id": node_id})


async def count_outside(conn: Connection, job_id: JobId) -> dict[str, dict[str, int]]:
    """Counts by status of the nodes that externally added nodes have added."""
    counts: dict[str, dict[str, int]] = {}
    for row in await fetch(conn, "page_count_outside", {"job_id": job_id, "prefix": f"{OUTSIDE}."}):
        counts.setdefault(row["node_id"], {})[row["status"]] = row["nodes"]
    return counts


async def fan_out_times(conn: Connection, job_id: JobId, node_ids: Sequence[str]) -> dict[str, Row]:
    values = {"job_id": job_id, "node_ids": list(node_ids)}
    rows = await fetch(conn, "page_fan_outs", values) if node_ids else []
    return {row["parent_node_id"]: row for row in rows}


async def fan_out_density(
    conn: Connection, job_id: JobId, node_id: NodeId, since: datetime, until: datetime, *, parts: int
) -> list[Row]:
    """Part 1 is the first; 0 is before the range and `parts + 1` after it."""
    values = {
        "job_id": job_id,
        "node_id": node_id,
        "since": since.timestamp(),
        "until": until.timestamp(),
        "parts": parts,
    }
    return await fetch(conn, "page_density", values) if until > since else []
