"""Read orchestrators: which are alive, and which are stalled."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, TypedDict

from dagmaster.store.connect import Connection, Row
from dagmaster.store.instances import host_key, is_gone
from dagmaster.store.statements import fetch, fetch_as


class OrchestratorRow(TypedDict):
    orchestrator_id: str
    hostname: str
    pid: int
    host_key: str
    status: str
    started_at: datetime
    heartbeat_at: datetime
    jobs_owned: int
    stats: dict[str, Any]
    heartbeat_age_seconds: float
    uptime_seconds: float


async def list_orchestrators(
    conn: Connection,
    *,
    threshold_seconds: float | None = None,
    omitted_stats: Sequence[str] = (),
    limit: int | None = None,
) -> list[OrchestratorRow]:
    """The newest first: all, or those with a heartbeat within `threshold_seconds`."""
    values = {"threshold_seconds": threshold_seconds, "omitted": list(omitted_stats), "limit": limit}
    return await fetch_as(conn, OrchestratorRow, "list_orchestrators", values)


async def backlog(conn: Connection) -> Row:
    [row] = await fetch(conn, "view_backlog", {})
    return row


async def is_orchestrated(conn: Connection, *, threshold_seconds: float) -> bool:
    """Whether an orchestrator is alive. A dead process on this machine does not count, however recent its heartbeat."""
    rows = await fetch(conn, "beating_orchestrators", {"threshold_seconds": threshold_seconds})
    here = host_key()
    return any(row["host_key"] != here or not is_gone(row["pid"]) for row in rows)


async def stalled_orchestrators(conn: Connection, *, progress_seconds: float, orphan_seconds: float) -> list[Row]:
    """Orchestrators that are alive but have made no progress for this long."""
    values = {"progress_seconds": progress_seconds, "orphan_seconds": orphan_seconds}
    return await fetch(conn, "stalled_orchestrators", values)
