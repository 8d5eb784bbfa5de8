"""Read nodes: one node, the nodes of a job, and nodes of all jobs."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, Final, TypedDict, TypeVar

from dagmaster.errors import Invalid, UnknownNode
from dagmaster.ids import JobId, NodeId, TaskId, WorkerId
from dagmaster.model.outcome import ENDED, Outcome
from dagmaster.model.states import NodeStatus
from dagmaster.store.connect import Connection, escape_like, required
from dagmaster.store.job_states import INLINE_BYTES
from dagmaster.store.statements import fetch, fetch_as, fetch_one_as

Node = TypeVar("Node")

# The total size of the outputs in one response.
MAX_SHOWN_BYTES = 1024 * 1024
UNLIMITED: Final = 2**63 - 1
# How many jobs are searched; nodes of older jobs are found through their job.
NEWEST_JOBS: Final = 1000
# Cancelled nodes, which were in flight when their job ended, are searched separately from failed ones.
STATUSES = (*NodeStatus, Outcome.CANCELLED)


class NodeSummary(TypedDict):
    """The state of a node."""

    node_id: NodeId
    status: str
    ended_by: str | None
    retry_count: int
    error_message: str | None
    started_at: datetime | None
    completed_at: datetime | None


class DrawnNode(NodeSummary):
    """A node of the definition in a graph. `taken_branch` is set for a conditional."""

    max_retries: int
    not_before: datetime | None
    taken_branch: str | None


class FoldedNode(NodeSummary):
    """A node that is drawn inside another; its error is shortened."""

    fan_out_index: int | None


class GridNode(NodeSummary):
    """A node in the grid of a workflow's runs."""

    job_id: JobId


class NodeRow(NodeSummary):
    """A node without its values."""

    task_id: TaskId | None
    max_retries: int
    parent_node_id: NodeId | None
    fan_out_index: int | None
    not_before: datetime | None
    created_at: datetime
    dispatched_at: datetime | None


class ListedNode(NodeRow):
    """A node in a list over all jobs."""

    last_error: str | None
    job_id: JobId
    workflow_id: str
    job_status: str
    job_completed_at: datetime | None


class JobNode(NodeRow):
    """A node in the list of its job. `output` is None if it is too large for the list."""

    last_error: str | None
    output: Any
    output_bytes: int | None


class PagedNode(NodeRow):
    """A node on a page of its job. `handler` and `type` are set for added nodes."""

    job_id: JobId
    handler: str | None
    type: str | None
    is_added: bool
    last_error: str | None
    worker_id: WorkerId | None
    progress_percent: float | None
    progress_message: str | None


class WholeNode(NodeRow):
    """`held_bytes` is the size of its parameters and its checkpoint."""

    job_id: JobId
    last_error: str | None
    queue: str | None
    definition: dict[str, Any] | None
    input_params: Any
    output: Any
    output_bytes: int | None
    checkpoint_phase: str | None
    checkpoint_data: Any
    checkpoint_saved_at: datetime | None
    held_bytes: int


class NodeHead(TypedDict):
    node_id: NodeId
    status: str
    retry_count: int
    not_before: datetime | None


class NodeProgress(TypedDict):
    """The progress that the newest attempt of a node reported."""

    job_id: JobId
    node_id: NodeId
    status: str
    ended_by: str | None
    retry_count: int
    max_retries: int
    task_id: TaskId | None
    checkpoint_phase: str | None
    checkpoint_saved_at: datetime | None
    progress_current: float | None
    progress_total: float | None
    progress_percent: float | None
    progress_message: str | None


class FailedNode(TypedDict):
    node_id: NodeId
    parent_node_id: NodeId | None
    error_message: str | None


class WaitingNode(TypedDict):
    node_id: NodeId
    input_params: Any
    started_at: datetime


@dataclass(frozen=True, slots=True)
class NodeSearch:
    statuses: Sequence[str] = ()
    workflow_id: str | None = None
    since: datetime | None = None
    text: str | None = None

    @property
    def is_open(self) -> bool:
        """Whether only unfinished nodes match."""
        return bool(self.statuses) and not ENDED.intersection(self.statuses)


@dataclass(frozen=True, slots=True)
class NodeFilter:
    """With `parent`, the nodes below it; without, the job's own nodes.

    Nodes that have not started are sorted as in `order`. `outcomes` are of nodes whose children give them another
    outcome than their own status.
    """

    parent: str | None = None
    status: str | None = None
    text: str | None = None
    order: Sequence[str] = ()
    outcomes: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_everywhere(self) -> bool:
        """A search for failed nodes includes the children of fan-outs."""
        return self.parent is None and self.status == Outcome.FAILED


async def search_nodes(conn: Connection, where: NodeSearch, *, limit: int, offset: int = 0) -> list[ListedNode]:
    """Of the newest matching jobs, the newest job first."""
    values = {
        **asdict(where),
        "statuses": list(where.statuses) or None,
        "is_open": where.is_open,
        "pattern": escape_like(where.text) if where.text else None,
        "jobs": NEWEST_JOBS,
        "limit": limit,
        "offset": offset,
    }
    return await fetch_as(conn, ListedNode, "search_nodes", values)


async def view_nodes(
    conn: Connection,
    *,
    job_id: JobId | None = None,
    status: str | None = None,
    workflow_id: str | None = None,
    limit: int,
    offset: int = 0,
) -> list[ListedNode]:
    """Of all jobs, without outputs; raises Invalid for an unknown status."""
    values = {"job_id": job_id, "status": _status(status), "workflow_id": workflow_id}
    return await fetch_as(conn, ListedNode, "view_nodes", {**values, "limit": limit, "offset": offset})


def jobs_of(rows: Sequence[ListedNode]) -> list[dict[str, Any]]:
    """The jobs of listed nodes, without duplicates."""
    jobs = {row["job_id"]: row["job_completed_at"] for row in rows}
    return [{"job_id": job_id, "completed_at": completed_at} for job_id, completed_at in jobs.items()]


async def kinds_of_nodes(conn: Connection, rows: Sequence[ListedNode]) -> dict[tuple[JobId, NodeId], Mapping[str, Any]]:
    """`type` and `signal` from the definitions of these nodes; None for the children of fan-outs."""
    values = {"job_ids": [row["job_id"] for row in rows], "node_ids": [row["node_id"] for row in rows]}
    kinds = await fetch(conn, "kinds_of_nodes", values) if rows else []
    return {(kind["job_id"], kind["node_id"]): kind for kind in kinds}


async def list_job_nodes(
    conn: Connection,
    job_id: JobId,
    *,
    parent: str | None = None,
    with_children: bool = False,
    status: str | None = None,
    inline_bytes: int = INLINE_BYTES,
    max_bytes: int = UNLIMITED,
    limit: int | None = None,
    offset: int = 0,
) -> list[JobNode]:
    """The job's own nodes, all of them `with_children`, or the children of the fan-out `parent`.

    Outputs over `inline_bytes` are left out, and all outputs after the first `max_bytes`.
    """
    values = {
        "job_id": job_id,
        "parent": parent,
        "with_children": with_children,
        "status": _status(status),
        "inline_bytes": inline_bytes,
        "max_bytes": max_bytes,
        "limit": limit,
        "offset": offset,
    }
    return await fetch_as(conn, JobNode, "list_job_nodes", values)


async def find_nodes(
    conn: Connection, job_id: JobId, where: NodeFilter, *, limit: int, offset: int = 0
) -> list[PagedNode]:
    values = {
        "job_id": job_id,
        "parent": where.parent,
        "is_everywhere": where.is_everywhere,
        "status": where.status,
        "fitting": [name for name, outcome in where.outcomes.items() if outcome == where.status],
        "other": list(where.outcomes),
        "pattern": escape_like(where.text) if where.text else None,
        "order": list(where.order),
        "limit": limit,
        "offset": offset,
    }
    return await fetch_as(conn, PagedNode, "page_nodes", values)


async def failed_nodes(conn: Connection, job_id: JobId, *, limit: int) -> list[FailedNode]:
    return await fetch_as(conn, FailedNode, "failed_nodes", {"job_id": job_id, "limit": limit})


async def waiting_nodes(conn: Connection, job_id: JobId, node_ids: Sequence[str]) -> list[WaitingNode]:
    if not node_ids:
        return []
    return await fetch_as(conn, WaitingNode, "waiting_nodes", {"job_id": job_id, "node_ids": list(node_ids)})


async def view_graph(conn: Connection, job_id: JobId) -> list[DrawnNode]:
    return await fetch_as(conn, DrawnNode, "view_graph", {"job_id": job_id})


async def view_folded(
    conn: Connection, job_id: JobId, parent: str, *, status: str | None = None, limit: int, offset: int = 0
) -> list[FoldedNode]:
    """The items of a fan-out, or the nodes that a node has added."""
    values = {"job_id": job_id, "parent": parent, "status": _status(status), "limit": limit, "offset": offset}
    return await fetch_as(conn, FoldedNode, "view_folded", values)


async def grid_nodes(
    conn: Connection, job_ids: Sequence[JobId], node_ids: Sequence[str]
) -> dict[tuple[JobId, str], GridNode]:
    """By job and node."""
    rows = await fetch_as(conn, GridNode, "grid_nodes", {"job_ids": list(job_ids), "node_ids": list(node_ids)})
    return {(row["job_id"], row["node_id"]): row for row in rows}


async def get_node(conn: Connection, job_id: JobId, node_id: NodeId) -> WholeNode:
    """Raises UnknownNode."""
    row = await fetch_one_as(conn, WholeNode, "get_node", {"job_id": job_id, "node_id": node_id})
    return _known(row, job_id, node_id)


async def get_node_head(conn: Connection, job_id: JobId, node_id: NodeId) -> NodeHead:
    """Raises UnknownNode."""
    row = await fetch_one_as(conn, NodeHead, "find_node_head", {"job_id": job_id, "node_id": node_id})
    return _known(row, job_id, node_id)


async def get_node_progress(conn: Connection, job_id: JobId, node_id: NodeId) -> NodeProgress:
    """Raises UnknownNode."""
    row = await fetch_one_as(conn, NodeProgress, "get_node_progress", {"job_id": job_id, "node_id": node_id})
    return _known(row, job_id, node_id)


def _known(row: Node | None, job_id: JobId, node_id: NodeId) -> Node:
    return required(row, UnknownNode(f"job {job_id} has no node {node_id!r}"))


def _status(name: str | None) -> str | None:
    if name is not None and name.lower() not in STATUSES:
        raise Invalid(f"{name!r} is not a status of nodes; there are {', '.join(STATUSES)}")
    return name.lower() if name else None
