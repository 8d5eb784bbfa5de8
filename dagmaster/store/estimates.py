"""The progress of a job, the history of its workflow, and the estimated end."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from time import monotonic
from typing import Any

from dagmaster.explain.estimate import TIMED, Estimate, Usual, estimate
from dagmaster.ids import JobId
from dagmaster.model.graph import Graph, NodeType
from dagmaster.model.outcome import Outcome
from dagmaster.model.progress import FanSnapshot, JobSnapshot, NodeSnapshot
from dagmaster.model.states import JobStatus, NodeStatus
from dagmaster.store.connect import Connection
from dagmaster.store.jobs import known_job
from dagmaster.store.queues import unserved_tasks
from dagmaster.store.statements import fetch
from dagmaster.store.workflows import PinnedGraphs

HISTORY_SECONDS = 30.0
KEEP_HISTORIES = 200
MOST_JOBS, FEWEST_JOBS = 20, 3
MOST_NODES = 10_000  # of all these jobs together
MOST_CHILDREN = 100  # of each fan-out
TOLERANCE = 0.1
WINDOW = 5_000  # the newest jobs, searched for completed ones

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ProgressSnapshot:
    job_id: JobId
    job: JobSnapshot
    workflow_hash: str


@dataclass(frozen=True, slots=True)
class History:
    """The definition of a job, and the usual durations of its nodes."""

    graph: Graph
    usual: Mapping[str, Usual]


async def load_snapshot(conn: Connection, job_id: JobId) -> ProgressSnapshot:
    """Read the snapshot in one statement."""
    rows = await fetch(conn, "job_snapshot", {"job_id": job_id})
    first = known_job(next(iter(rows), None), job_id)
    nodes = {row["node_id"]: _node(row) for row in rows if row["node_id"] is not None}
    status = JobStatus(first["job_status"])
    job = JobSnapshot(status, first["now"], nodes, first["job_completed_at"], first["paused_at"])
    return ProgressSnapshot(job_id, job, first["workflow_hash"])


def _node(row: Row) -> NodeSnapshot:
    return NodeSnapshot(
        NodeStatus.FAILED if row["status"] == Outcome.CANCELLED else NodeStatus(row["status"]),
        row["dispatched_at"],
        row["started_at"],
        row["completed_at"],
        row["not_before"],
        _fan(row) if row["counts"] is not None else None,
        row["added"] or {},
        row["may_fail"],
        is_cancelled=row["status"] == Outcome.CANCELLED,
    )


def _fan(row: Row) -> FanSnapshot:
    counts: dict[str, int] = row["counts"]
    return FanSnapshot(
        max(row["items"] or 0, sum(counts.values())),
        counts,
        row["retries"],
        row["last_ended_at"],
        row["newest_started_at"],
        row["child_seconds"],
    )


class Histories:
    """The usual durations of workflows, cached for a while: job pages request them on every refresh."""

    def __init__(
        self, pinned: PinnedGraphs | None = None, *, keep: int = KEEP_HISTORIES, seconds: float = HISTORY_SECONDS
    ) -> None:
        self._pinned = pinned or PinnedGraphs()
        self._known: dict[str, tuple[float, History]] = {}
        self._keep, self._seconds = keep, seconds

    async def estimate(self, conn: Connection, snapshot: ProgressSnapshot) -> Estimate | None:
        """None for a job that does not run, and for one with a task that no worker can claim."""
        if snapshot.job.status is not JobStatus.RUNNING or snapshot.job.paused_at is not None:
            return None
        if has_queued(snapshot.job) and await unserved_tasks(conn, snapshot.job_id):
            return None
        history = await self._of(conn, snapshot.workflow_hash)
        return estimate(history.graph, snapshot.job, history.usual) if history is not None else None

    async def _of(self, conn: Connection, workflow_hash: str) -> History | None:
        until, known = self._known.get(workflow_hash, (0.0, None))
        if known is not None and monotonic() < until:
            return known
        if known is not None:  # Concurrent callers get the old one.
            self._known[workflow_hash] = (monotonic() + self._seconds, known)
        graph = known.graph if known is not None else await self._pinned.find(conn, workflow_hash)
        if graph is None:
            return None
        history = History(graph, await usual_times(conn, graph))
        if len(self._known) >= self._keep and workflow_hash not in self._known:
            del self._known[next(iter(self._known))]
        self._known[workflow_hash] = (monotonic() + self._seconds, history)
        return history


def has_queued(job: JobSnapshot) -> bool:
    return any(
        node.status is NodeStatus.DISPATCHED or (node.fan is not None and node.fan.counts.get(NodeStatus.DISPATCHED))
        for node in job.nodes.values()
    )


async def usual_times(conn: Connection, graph: Graph) -> dict[str, Usual]:
    """By node, for nodes that take time and that recent completed jobs have run."""
    timed = [node for node in graph.nodes.values() if node.type in TIMED]
    values = {
        "workflow_id": graph.workflow.workflow_id,
        "workflow_hash": graph.workflow.content_hash,
        "node_ids": [node.node_id for node in timed],
        "fan_outs": [node.node_id for node in timed if node.type is NodeType.FAN_OUT],
        "jobs": max(min(MOST_JOBS, MOST_NODES // max(len(timed), 1)), FEWEST_JOBS),
        "children": MOST_CHILDREN,
        "window": WINDOW,
    }
    rows = await fetch(conn, "usual_times", values)
    return {row["node_id"]: _usual(row) for row in rows}


def _usual(row: Row) -> Usual:
    parallel = row["parallel"] or 1.0
    if parallel > 1:  # An average of partly busy workers, with clock skew.
        parallel = float(max(ceil(parallel - TOLERANCE), 1))
    return Usual(row["run_seconds"], row["wait_seconds"] or 0.0, row["items"], parallel, row["is_skipped"])
