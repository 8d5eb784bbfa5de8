"""Read workers."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, TypedDict

from dagmaster.ids import WorkerId
from dagmaster.store.connect import Connection
from dagmaster.store.statements import fetch_as, fetch_one_as

LOST_SHOWN_SECONDS: Final = 3600.0
ANY_WORKER: Final = {
    "status": None,
    "queues": None,
    "needs_attention": False,
    "lost_shown_seconds": LOST_SHOWN_SECONDS,
    "lost_after_seconds": 0.0,
    "offset": 0,
}


class WorkerRow(TypedDict):
    """`wanted` is run, drain or stop. `key_id` is the API key of a worker without database access."""

    worker_id: WorkerId
    hostname: str
    pid: int
    host_key: str
    status: str
    wanted: str
    queues: list[str]
    handlers: list[str] | None
    concurrency: int
    tasks_completed: int
    tasks_failed: int
    started_at: datetime
    last_heartbeat: datetime
    stats: dict[str, Any]
    key_id: str | None
    heartbeat_age_seconds: float
    stuck_tasks: list[str]
    running_tasks: int


class WorkerHead(TypedDict):
    worker_id: WorkerId
    host_key: str
    status: str
    wanted: str
    queues: list[str]
    key_id: str | None


async def list_workers(
    conn: Connection,
    *,
    status: str | None = None,
    queues: Sequence[str] | None = None,
    limit: int | None = None,
    offset: int = 0,
) -> list[WorkerRow]:
    """Active workers first, then the newest; with `queues`, those that consume one of them."""
    names = None if queues is None else list(queues)
    values = {**ANY_WORKER, "status": status, "queues": names, "limit": limit, "offset": offset}
    return await fetch_as(conn, WorkerRow, "list_workers", values)


async def list_troubled_workers(conn: Connection, *, lost_after_seconds: float, limit: int) -> list[WorkerRow]:
    """Workers that were lost in the last hour, are silent, or have stuck slots."""
    values = {**ANY_WORKER, "needs_attention": True, "lost_after_seconds": lost_after_seconds, "limit": limit}
    return await fetch_as(conn, WorkerRow, "list_workers", values)


async def find_worker(conn: Connection, worker_id: WorkerId) -> WorkerHead | None:
    return await fetch_one_as(conn, WorkerHead, "find_worker", {"worker_id": worker_id})
