"""What the pages of one job look up: a part of its nodes, their attempts, its timeline, the jobs around it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from dagmaster.model.added import OUTSIDE
from dagmaster.model.outcome import Outcome
from dagmaster.store.connect import Connection
from dagmaster.store.looking import literal
from dagmaster.store.statements import fetch, run

Row = dict[str, Any]

MAX_ATTEMPTS: Final = 5000
MAX_EVENT_ID: Final = 2**63 - 1
SLACK: Final = timedelta(minutes=1)  # Events may be stamped by another clock than their job.


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


@dataclass(frozen=True, slots=True)
class EventFilter:
    """`cursor` is the event behind which the page begins, in the order that is wanted."""

    event_type: str | None = None
    node_id: str | None = None
    is_newest_first: bool = True
    cursor: int | None = None


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


async def results_of_nodes(conn: Connection, job_id: int, node_ids: Sequence[str]) -> list[Row]:
    values = {"job_id": job_id, "node_ids": list(node_ids), "limit": MAX_ATTEMPTS}
    return await fetch(conn, "page_results_of_nodes", values) if node_ids else []


async def attempt_times(conn: Connection, job: Mapping[str, Any], node_ids: Sequence[str]) -> list[Row]:
    """From the timeline, which is read from its beginning: not for jobs with very many nodes."""
    since = job["created_at"] - SLACK
    values = {"job_id": job["job_id"], "since": since, "node_ids": list(node_ids), "limit": MAX_ATTEMPTS}
    return await fetch(conn, "page_attempt_times", values) if node_ids else []


async def fan_out_times(conn: Connection, job_id: int, node_ids: Sequence[str]) -> dict[str, Row]:
    values = {"job_id": job_id, "node_ids": list(node_ids)}
    rows = await fetch(conn, "page_fan_outs", values) if node_ids else []
    return {row["parent_node_id"]: row for row in rows}


async def fan_out_density(
    conn: Connection, job_id: int, node_id: str, since: datetime, until: datetime, *, parts: int
) -> list[Row]:
    """Part 1 is the first, 0 lies before the time and `parts + 1` behind it."""
    values = {
        "job_id": job_id,
        "node_id": node_id,
        "since": since.timestamp(),
        "until": until.timestamp(),
        "parts": parts,
    }
    return await fetch(conn, "page_density", values) if until > since else []


async def find_events(conn: Connection, job: Mapping[str, Any], wanted: EventFilter, *, limit: int) -> list[Row]:
    newest_first = wanted.is_newest_first
    values = {
        "job_id": job["job_id"],
        "since": job["created_at"] - SLACK,
        "after": wanted.cursor if wanted.cursor is not None and not newest_first else 0,
        "before": wanted.cursor if wanted.cursor is not None and newest_first else MAX_EVENT_ID,
        "node_id": wanted.node_id,
        "event_type": wanted.event_type,
        "limit": limit,
    }
    return await fetch(conn, "page_events_down" if newest_first else "page_events_up", values)


async def count_children(conn: Connection, job_id: int, node_id: str) -> list[Row]:
    return await fetch(conn, "page_count_children", {"job_id": job_id, "node_id": node_id})


async def count_outside(conn: Connection, job_id: int) -> dict[str, dict[str, int]]:
    """Counts by status of what the nodes that were added from outside have added themselves."""
    found: dict[str, dict[str, int]] = {}
    for row in await fetch(conn, "page_count_outside", {"job_id": job_id, "prefix": f"{OUTSIDE}."}):
        found.setdefault(row["node_id"], {})[row["status"]] = row["nodes"]
    return found


async def worker_of(conn: Connection, task_id: str) -> str | None:
    """None for an attempt that nobody has."""
    row = await (await run(conn, "page_worker_of", {"task_id": task_id})).fetchone()
    return row["worker_id"] if row else None


async def child_jobs(conn: Connection, job_id: int, *, limit: int) -> list[Row]:
    return await fetch(conn, "page_children", {"job_id": job_id, "limit": limit})


async def neighbours(
    conn: Connection, job: Mapping[str, Any], *, submitted_by: str | None = None, limit: int
) -> list[Row]:
    """On both sides so many, the newest first."""
    values = {
        "job_id": job["job_id"],
        "workflow_id": job["workflow_id"],
        "created_at": job["created_at"],
        "submitted_by": submitted_by,
        "limit": limit,
    }
    return await fetch(conn, "page_neighbours", values)
