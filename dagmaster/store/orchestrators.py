"""Read orchestrators: which are alive, and which get nothing done."""

from typing import Any

from dagmaster.store.connect import Connection
from dagmaster.store.instances import host_key, is_gone
from dagmaster.store.statements import fetch

Row = dict[str, Any]


async def view_orchestrators(conn: Connection, *, threshold_seconds: float) -> list[Row]:
    """Those that beat."""
    return await fetch(conn, "view_orchestrators", {"threshold_seconds": threshold_seconds})


async def backlog(conn: Connection) -> Row:
    [row] = await fetch(conn, "view_backlog", {})
    return row


async def list_orchestrators(conn: Connection) -> list[dict[str, Any]]:
    return await fetch(conn, "list_orchestrators", {})


async def is_orchestrated(conn: Connection, *, threshold_seconds: float) -> bool:
    """Whether an orchestrator is there. One of this machine whose process is gone is not, however lately it beat."""
    rows = await fetch(conn, "beating_orchestrators", {"threshold_seconds": threshold_seconds})
    here = host_key()
    return any(row["host_key"] != here or not is_gone(row["pid"]) for row in rows)


async def stalled_orchestrators(
    conn: Connection, *, progress_seconds: float, orphan_seconds: float
) -> list[dict[str, Any]]:
    """Those that are there and have got nothing done for so long."""
    values = {"progress_seconds": progress_seconds, "orphan_seconds": orphan_seconds}
    return await fetch(conn, "stalled_orchestrators", values)
