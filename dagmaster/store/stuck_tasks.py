"""Warn of tasks that no worker takes."""

from typing import Any

from dagmaster.store.connect import Connection
from dagmaster.store.statements import run

Row = dict[str, Any]

WARN_AT_ONCE = 500


async def warn_of_stuck_tasks(conn: Connection, *, after_seconds: float) -> list[str]:
    """The tasks that were warned of just now, each once in its life."""
    # First the lock, then the look: in one statement the look would be older than the lock.
    async with conn.transaction():
        turn = await (await run(conn, "watch_turn")).fetchone()
        if turn is None or not turn["is_mine"]:
            return []
        values = {"stuck_after_seconds": after_seconds, "limit": WARN_AT_ONCE}
        rows = await (await run(conn, "warn_of_stuck_tasks", values)).fetchall()
    return [row["task_id"] for row in rows]
