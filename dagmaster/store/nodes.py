"""Read nodes: one, those of a job, and those of all jobs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, TypedDict

from dagmaster.errors import (
    Invalid,
    UnknownNode,
)
from dagmaster.ids import NodeId
from dagmaster.model.outcome import ENDED, Outcome
from dagmaster.model.states import NodeStatus
from dagmaster.store.connect import Connection
from dagmaster.store.job_states import INLINE_BYTES
from dagmaster.store.patterns import literal
from dagmaster.store.statements import fetch, fetch_as, run

Row = dict[str, Any]

# Of the outputs in one answer, together.
MAX_SHOWN_BYTES = 1024 * 1024
# How many jobs are looked into: what is older is found by its job.
NEWEST_JOBS: Final = 1000
# Those of nodes; what was in progress when its job ended is looked for apart from what failed.
STATUSES = (*NodeStatus, Outcome.CANCELLED)


@dataclass(frozen=True, slots=True)
class NodeSearch:
    statuses: Sequence[str] = ()
    workflow_id: str | None = None
    since: datetime | None = None
    text: str | None = None

    @property
    def is_open(self) -> bool:
        """Whether only what has not ended is looked for."""
        return bool(self.statuses) and not ENDED.intersection(self.statuses)


async def search_nodes(conn: Connection, wanted: NodeSearch, *, limit: int, offset: int = 0) -> list[Row]:
    """Of the newest jobs that fit, those of the newest first."""
    values = {
        "statuses": list(wanted.statuses) or None,
        "is_open": wanted.is_open,
        "workflow_id": wanted.workflow_id,
        "since": wanted.since,
        "text": wanted.text,
        "pattern": literal(wanted.text) if wanted.text else None,
        "jobs": NEWEST_JOBS,
        "limit": limit,
        "offset": offset,
    }
    return await fetch(conn, "list_nodes", values)


@dataclass(frozen=True, slots=True)
class NodeFilter:
    """`parent` is a node of which all that has come of it is wanted; without one, the job's own nodes are.

    Nodes that have not begun come as in `order`. `outcomes` are of the nodes whose children make them other than their
    own status.
    """

    parent: str | None = None
    status: str | None = None
    text: str | None = None
    order: Sequence[str] = ()
    outcomes: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_everywhere(self) -> bool:
        """Who looks for what failed means the children of fan-outs too."""
        return self.parent is None and self.status == Outcome.FAILED


async def find_nodes(conn: Connection, job_id: int, wanted: NodeFilter, *, limit: int, offset: int = 0) -> list[Row]:
    values = {
        "job_id": job_id,
        "parent": wanted.parent,
        "is_everywhere": wanted.is_everywhere,
        "status": wanted.status,
        "fitting": [name for name, outcome in wanted.outcomes.items() if outcome == wanted.status],
        "other": list(wanted.outcomes),
        "pattern": literal(wanted.text) if wanted.text else None,
        "order": list(wanted.order),
        "limit": limit,
        "offset": offset,
    }
    return await fetch(conn, "page_nodes", values)


async def failed_nodes(conn: Connection, job_id: int, *, limit: int) -> list[Row]:
    return await fetch(conn, "page_failed_nodes", {"job_id": job_id, "limit": limit})


async def waiting_nodes(conn: Connection, job_id: int, node_ids: Sequence[str]) -> list[Row]:
    return await fetch(conn, "page_waiting_nodes", {"job_id": job_id, "node_ids": list(node_ids)}) if node_ids else []


async def list_nodes(
    conn: Connection, job_id: int, *, with_children: bool = False, inline_bytes: int | None = INLINE_BYTES
) -> list[dict[str, Any]]:
    """Outputs over `inline_bytes` are left out."""
    values = {"job_id": job_id, "with_children": with_children, "inline_bytes": inline_bytes}
    return await fetch(conn, "show_nodes", values)


async def watch_nodes(conn: Connection, job_id: int) -> list[dict[str, Any]]:
    """The job's own nodes without their outputs, in no order."""
    return await fetch(conn, "watch_nodes", {"job_id": job_id})


async def view_nodes(
    conn: Connection,
    *,
    job_id: int | None = None,
    status: str | None = None,
    workflow_id: str | None = None,
    limit: int,
    offset: int = 0,
) -> list[Row]:
    """Of all jobs, without outputs; raises Invalid for a status that does not exist."""
    values = {"job_id": job_id, "status": _status(status), "workflow_id": workflow_id}
    return await fetch(conn, "view_nodes", {**values, "limit": limit, "offset": offset})


async def view_job_nodes(
    conn: Connection,
    job_id: int,
    *,
    parent: str | None = None,
    status: str | None = None,
    limit: int,
    offset: int = 0,
) -> list[Row]:
    """The job's own nodes, or the children of the fan-out `parent`."""
    values = {
        "job_id": job_id,
        "parent": parent,
        "status": _status(status),
        "limit": limit,
        "offset": offset,
        "inline_bytes": INLINE_BYTES,
        "max_bytes": MAX_SHOWN_BYTES,
    }
    return await fetch(conn, "view_job_nodes", values)


async def get_node(conn: Connection, job_id: int, node_id: str) -> Row:
    row = await (await run(conn, "view_node", {"job_id": job_id, "node_id": node_id})).fetchone()
    if row is None:
        raise UnknownNode(f"job {job_id} has no node {node_id!r}")
    return row


class NodeHead(TypedDict):
    node_id: NodeId
    status: str
    retry_count: int
    not_before: datetime | None


async def find_node_head(conn: Connection, job_id: int, node_id: str) -> NodeHead | None:
    rows = await fetch_as(conn, NodeHead, "find_node_head", {"job_id": job_id, "node_id": node_id})
    return rows[0] if rows else None


async def get_node_head(conn: Connection, job_id: int, node_id: str) -> NodeHead:
    """Raises UnknownNode."""
    row = await find_node_head(conn, job_id, node_id)
    if row is None:
        raise UnknownNode(f"job {job_id} has no node {node_id!r}")
    return row


async def view_graph(conn: Connection, job_id: int) -> list[Row]:
    return await fetch(conn, "view_graph", {"job_id": job_id})


async def view_folded(
    conn: Connection, job_id: int, parent: str, *, status: str | None = None, limit: int, offset: int = 0
) -> list[Row]:
    """The items of a fan-out, or what a node has added."""
    values = {"job_id": job_id, "parent": parent, "status": _status(status), "limit": limit, "offset": offset}
    return await fetch(conn, "view_folded", values)


def jobs_of(rows: Sequence[Row]) -> list[Row]:
    """The jobs of nodes of a list, each once."""
    jobs = {row["job_id"]: row["job_completed_at"] for row in rows}
    return [{"job_id": job_id, "completed_at": completed_at} for job_id, completed_at in jobs.items()]


def _status(given: str | None) -> str | None:
    if given is not None and given.lower() not in STATUSES:
        raise Invalid(f"{given!r} is not a status of nodes; there are {', '.join(STATUSES)}")
    return given.lower() if given else None


async def grid_nodes(conn: Connection, job_ids: Sequence[int], node_ids: Sequence[str]) -> dict[tuple[int, str], Row]:
    """By job and node."""
    rows = await fetch(conn, "grid_nodes", {"job_ids": list(job_ids), "node_ids": list(node_ids)})
    return {(row["job_id"], row["node_id"]): row for row in rows}


async def node_progress(conn: Connection, job_id: int, node_id: str) -> Row:
    row = await (await run(conn, "node_progress", {"job_id": job_id, "node_id": node_id})).fetchone()
    if row is None:
        raise UnknownNode(f"job {job_id} has no node {node_id!r}")
    return row
