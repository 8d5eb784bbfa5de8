"""What people and programs look at: nodes, tasks, queues, workers, orchestrators, the timeline's sums."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson

from dagmaster.errors import Invalid, UnknownNode
from dagmaster.model.states import EVENT_ALIASES, EndedBy, NodeStatus
from dagmaster.store.connect import Connection, encode_rows, storable
from dagmaster.store.jobs import INLINE_BYTES, MAX_SHOWN_BYTES
from dagmaster.store.statements import fetch, run

ENDED_STATES = ("completed", "failed")
# How many jobs are looked into for attempts that have ended: what is older is found by its job.
NEWEST_JOBS = 1000

Row = dict[str, Any]
# Those of nodes; what was cancelled with its job is looked for apart from what failed.
STATUSES = (*NodeStatus, EndedBy.CANCELLED)


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


def jobs_of(rows: Sequence[Row]) -> list[Row]:
    """The jobs of nodes of a list, each once."""
    jobs = {row["job_id"]: row["job_completed_at"] for row in rows}
    return [{"job_id": job_id, "completed_at": completed_at} for job_id, completed_at in jobs.items()]


async def view_tasks(
    conn: Connection,
    *,
    job_id: int | None = None,
    state: str | None = None,
    queue: str | None = None,
    handler: str | None = None,
    worker_id: str | None = None,
    limit: int,
    offset: int = 0,
) -> list[Row]:
    values = {"job_id": job_id, "state": state, "queue": queue, "handler": handler, "worker_id": worker_id}
    return await fetch(conn, "view_tasks", {**values, "limit": limit, "offset": offset})


async def list_attempts(conn: Connection, *, state: str | None, queue: str | None, **where: Any) -> list[Row]:
    """Those that wait or run, then those that have ended."""
    limit, offset = where.pop("limit"), where.pop("offset")
    values = {"queue": queue, "state": state, **where}
    found: list[Row] = []
    if state not in ENDED_STATES:
        found = await fetch(conn, "view_tasks", {**values, "limit": limit, "offset": offset})
        [counted] = await fetch(conn, "count_tasks", values)
        offset = max(offset - counted["tasks"], 0)
    if len(found) < limit and queue is None and (state is None or state in ENDED_STATES):
        rest = {**values, "jobs": NEWEST_JOBS, "limit": limit - len(found), "offset": offset}
        found += await fetch(conn, "view_ended_tasks", rest)
    return found


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


def _status(given: str | None) -> str | None:
    if given is not None and given.lower() not in STATUSES:
        raise Invalid(f"{given!r} is not a status of nodes; there are {', '.join(STATUSES)}")
    return given.lower() if given else None


async def get_node(conn: Connection, job_id: int, node_id: str) -> Row:
    row = await (await run(conn, "view_node", {"job_id": job_id, "node_id": node_id})).fetchone()
    if row is None:
        raise UnknownNode(f"job {job_id} has no node {node_id!r}")
    return row


async def node_standing(conn: Connection, job_id: int, node_id: str) -> Row:
    row = await (await run(conn, "node_standing", {"job_id": job_id, "node_id": node_id})).fetchone()
    if row is None:
        raise UnknownNode(f"job {job_id} has no node {node_id!r}")
    return row


async def view_logged(
    conn: Connection, job_id: int, *, node_id: str | None = None, limit: int, offset: int = 0
) -> list[Row]:
    """Nodes that may have a log."""
    return await fetch(conn, "view_logged", {"job_id": job_id, "node_id": node_id, "limit": limit, "offset": offset})


async def find_log_place(conn: Connection, task_id: str) -> Row | None:
    """None while the attempt has not ended, and when it wrote nothing."""
    return await (await run(conn, "log_place", {"task_id": task_id})).fetchone()


async def view_attempts(conn: Connection, job_id: int, node_id: str) -> list[Row]:
    return await fetch(conn, "view_attempts", {"job_id": job_id, "node_id": node_id})


async def view_checkpoints(conn: Connection, job_id: int, node_id: str, *, limit: int, offset: int = 0) -> list[Row]:
    """The newest first."""
    values = {"job_id": job_id, "node_id": node_id, "limit": limit, "offset": offset}
    return await fetch(conn, "view_checkpoints", values)


async def view_graph(conn: Connection, job_id: int) -> list[Row]:
    return await fetch(conn, "view_graph", {"job_id": job_id})


async def count_folded(conn: Connection, job_id: int) -> list[Row]:
    """By the node within which they are drawn, and by status."""
    return await fetch(conn, "count_folded", {"job_id": job_id})


async def view_folded(
    conn: Connection, job_id: int, parent: str, *, status: str | None = None, limit: int, offset: int = 0
) -> list[Row]:
    """The items of a fan-out, or what a node has added."""
    values = {"job_id": job_id, "parent": parent, "status": _status(status), "limit": limit, "offset": offset}
    return await fetch(conn, "view_folded", values)


async def last_event_of_job(conn: Connection, job: Mapping[str, Any]) -> int:
    [row] = await fetch(conn, "last_event_of_job", {"job_id": job["job_id"], "since": job["created_at"]})
    return int(row["event_id"])


async def summarise_events(conn: Connection, job_id: int, node_id: str | None = None) -> Row:
    [row] = await fetch(conn, "summarise_events", {"job_id": job_id, "node_id": node_id})
    return row


async def view_audit(conn: Connection, event_types: Sequence[str], *, limit: int, offset: int = 0) -> list[Row]:
    """What was done to the system and to no job."""
    types = [EVENT_ALIASES.get(name, name) for name in event_types] or None
    return await fetch(conn, "view_audit", {"event_types": types, "limit": limit, "offset": offset})


async def view_queues(conn: Connection, *, lost_after_seconds: float) -> list[Row]:
    return await fetch(conn, "view_queues", {"lost_after_seconds": lost_after_seconds})


async def view_workers(conn: Connection, *, status: str | None = None, limit: int, offset: int = 0) -> list[Row]:
    return await fetch(conn, "view_workers", {"status": status, "limit": limit, "offset": offset})


async def view_orchestrators(conn: Connection, *, threshold_seconds: float) -> list[Row]:
    """Those that beat."""
    return await fetch(conn, "view_orchestrators", {"threshold_seconds": threshold_seconds})


async def view_backlog(conn: Connection) -> Row:
    [row] = await fetch(conn, "view_backlog", {})
    return row


async def missing_partitions(conn: Connection) -> int:
    [row] = await fetch(conn, "view_missing_partitions", {})
    return int(row["missing"])


async def view_tables(conn: Connection) -> list[Row]:
    return await fetch(conn, "view_tables", {})


async def database_name(conn: Connection) -> str:
    [row] = await fetch(conn, "database_name", {})
    return str(row["name"])


async def drop_schema(conn: Connection) -> None:
    """Destroys every job, key and event."""
    await run(conn, "drop_schema")


async def note_command(
    conn: Connection, data: Mapping[str, Any], *, error: str | None = None, duration_ms: int | None = None
) -> None:
    """The trace that every change of the system by hand leaves."""
    values = {
        "event_status": "info" if error is None else "failure",
        "data": storable(orjson.dumps(data).decode()),
        "error": storable(error) if error is not None else None,
        "duration_ms": duration_ms,
    }
    await run(conn, "note_command", values)


@dataclass(frozen=True, slots=True)
class Position:
    """How far somebody has read a job's timeline: all up to `after`, and those of `seen` behind it."""

    job_id: int
    after: int
    since: datetime
    seen: Sequence[int] = ()


@dataclass(slots=True)
class News:
    """`job_status` is None when the job is no longer there. With `is_full` there is more."""

    job_status: str | None
    events: list[Row]
    is_full: bool = False


async def watched_events(conn: Connection, positions: Sequence[Position], *, page: int) -> list[News]:
    """What is new for each of them, in one statement."""
    watchers = [
        {"place": place, "job_id": one.job_id, "after": one.after, "since": one.since, "seen": list(one.seen)}
        for place, one in enumerate(positions)
    ]
    news: dict[int, News] = {}
    for row in await fetch(conn, "watched_events", {"watchers": encode_rows(watchers), "page": page}):
        one = news.setdefault(row["place"], News(row["job_status"], []))
        if row["event_id"] is not None:
            one.events.append(row)
    for one in news.values():
        one.is_full = len(one.events) >= page
    return [news[place] for place in range(len(positions))]
