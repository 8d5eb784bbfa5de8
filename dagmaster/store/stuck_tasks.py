"""Warn about tasks that no worker claims."""

from dagmaster.store.connect import Connection
from dagmaster.store.statements import fetch

WARN_AT_ONCE = 500


async def warn_of_stuck_tasks(conn: Connection, *, after_seconds: float) -> list[str]:
    """Warn once about each stuck task; returns the new ones."""
    # Lock in a separate statement first: in the same statement, the snapshot would be older than the lock.
    async with conn.transaction():
        [turn] = await fetch(conn, "watch_turn")
        if not turn["is_mine"]:
            return []
        values = {"stuck_after_seconds": after_seconds, "limit": WARN_AT_ONCE}
        rows = await fetch(conn, "warn_of_stuck_tasks", values)
    return [row["task_id"] for row in rows]
