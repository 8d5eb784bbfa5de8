"""Read attempts at nodes: waiting, running or ended, with their logs and checkpoints."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from dagmaster.ids import JobId, NodeId, TaskId, WorkerId
from dagmaster.store.connect import Connection, Row
from dagmaster.store.events import SLACK
from dagmaster.store.nodes import NEWEST_JOBS
from dagmaster.store.statements import fetch, fetch_one

ENDED_STATES = ("completed", "failed")
NEWEST_RESULTS: Final = 1000
MAX_ATTEMPTS: Final = 5000
MAX_CURRENT = 100


async def list_tasks(
    conn: Connection,
    *,
    state: str | None = None,
    queue: str | None = None,
    handler: str | None = None,
    worker_id: WorkerId | None = None,
    limit: int,
    offset: int = 0,
) -> list[Row]:
    values = {"job_id": None, "state": state, "queue": queue, "handler": handler, "worker_id": worker_id}
    return await fetch(conn, "view_tasks", {**values, "limit": limit, "offset": offset})


async def list_attempts(conn: Connection, *, state: str | None, queue: str | None, **where: Any) -> list[Row]:
    """Waiting and running attempts first, then ended ones."""
    limit, offset = where.pop("limit"), where.pop("offset")
    values = {"queue": queue, "state": state, **where}
    attempts: list[Row] = []
    if state not in ENDED_STATES:
        attempts = await fetch(conn, "view_tasks", {**values, "limit": limit, "offset": offset})
        [counted] = await fetch(conn, "count_tasks", values)
        offset = max(offset - counted["tasks"], 0)
    if len(attempts) < limit and queue is None and (state is None or state in ENDED_STATES):
        page = {"jobs": NEWEST_JOBS, "limit": limit - len(attempts), "offset": offset}
        attempts += await fetch(conn, "view_ended_tasks", {**values, **page})
    return attempts


async def list_results(
    conn: Connection, *, since: datetime, worker_id: WorkerId | None = None, handler: str | None = None
) -> list[Row]:
    """The newest attempts that ended since then."""
    values = {"since": since, "worker_id": worker_id, "handler": handler, "jobs": NEWEST_JOBS, "limit": NEWEST_RESULTS}
    return await fetch(conn, "list_results", values)


async def attempts_of_node(conn: Connection, job_id: JobId, node_id: NodeId) -> list[Row]:
    return await fetch(conn, "view_attempts", {"job_id": job_id, "node_id": node_id})


async def results_of_nodes(conn: Connection, job_id: JobId, node_ids: Sequence[str]) -> list[Row]:
    values = {"job_id": job_id, "node_ids": list(node_ids), "limit": MAX_ATTEMPTS}
    return await fetch(conn, "page_results_of_nodes", values) if node_ids else []


async def attempt_times(conn: Connection, job: Mapping[str, Any], node_ids: Sequence[str]) -> list[Row]:
    """From the timeline, read from its beginning: not for jobs with very many nodes."""
    since = job["created_at"] - SLACK
    values = {"job_id": job["job_id"], "since": since, "node_ids": list(node_ids), "limit": MAX_ATTEMPTS}
    return await fetch(conn, "page_attempt_times", values) if node_ids else []


async def worker_of(conn: Connection, task_id: TaskId) -> str | None:
    """None for an attempt that no worker holds."""
    row = await fetch_one(conn, "page_worker_of", {"task_id": task_id})
    return row["worker_id"] if row else None


async def current_tasks(conn: Connection, job_id: JobId) -> list[Row]:
    return await fetch(conn, "current_tasks", {"job_id": job_id, "limit": MAX_CURRENT})


async def list_logged_nodes(
    conn: Connection, job_id: JobId, *, node_id: NodeId | None = None, limit: int, offset: int = 0
) -> list[Row]:
    """The nodes that may have a log."""
    return await fetch(conn, "view_logged", {"job_id": job_id, "node_id": node_id, "limit": limit, "offset": offset})


async def find_log_place(conn: Connection, task_id: TaskId) -> Row | None:
    """None until the attempt has ended, and if it logged nothing."""
    return await fetch_one(conn, "log_place", {"task_id": task_id})


async def list_checkpoints(
    conn: Connection, job_id: JobId, node_id: NodeId, *, limit: int, offset: int = 0
) -> list[Row]:
    """The newest first."""
    values = {"job_id": job_id, "node_id": node_id, "limit": limit, "offset": offset}
    return await fetch(conn, "view_checkpoints", values)
