"""What an orchestrator sees and says of the whole: tasks that nobody takes, full queues, its own state."""

from collections.abc import Mapping
from typing import Any

import orjson

from dagmaster.store.connect import Connection
from dagmaster.store.statements import run

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


async def open_depths(conn: Connection) -> dict[str, int]:
    rows = await (await run(conn, "open_depths")).fetchall()
    return {row["queue"]: row["depth"] for row in rows}


async def note_orchestrator(
    conn: Connection, event_type: str, data: Mapping[str, Any], *, status: str = "warning"
) -> None:
    values = {"event_type": event_type, "event_status": status, "data": orjson.dumps(data).decode()}
    await run(conn, "note_orchestrator", values)
