"""Read workers."""

from typing import Any

from dagmaster.store.connect import Connection
from dagmaster.store.statements import fetch

Row = dict[str, Any]


async def view_workers(conn: Connection, *, status: str | None = None, limit: int, offset: int = 0) -> list[Row]:
    return await fetch(conn, "view_workers", {"status": status, "limit": limit, "offset": offset})


async def list_all_workers(
    conn: Connection, *, lost_after_seconds: float, status: str | None = None, limit: int, offset: int = 0
) -> list[Row]:
    values = {"lost_after_seconds": lost_after_seconds, "status": status, "limit": limit, "offset": offset}
    return await fetch(conn, "list_all_workers", values)


async def list_workers(conn: Connection) -> list[dict[str, Any]]:
    return await fetch(conn, "list_workers", {})
