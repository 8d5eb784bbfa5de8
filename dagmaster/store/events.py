"""A job's timeline."""

from collections.abc import Sequence
from typing import Any

from dagmaster.model.states import EVENT_ALIASES
from dagmaster.store.connect import Connection
from dagmaster.store.statements import run


async def list_events(
    conn: Connection,
    job_id: int,
    *,
    node_id: str | None = None,
    event_types: Sequence[str] = (),
    after: int = 0,
    limit: int = 1000,
) -> list[dict[str, Any]]:
    """Oldest first, beginning behind the event `after`."""
    types = [EVENT_ALIASES.get(name, name) for name in event_types] or None
    values = {"job_id": job_id, "node_id": node_id, "event_types": types, "after": after, "limit": limit}
    cursor = await run(conn, "list_events", values)
    return await cursor.fetchall()


async def ensure_partitions(conn: Connection, days_ahead: int = 7) -> None:
    await run(conn, "ensure_event_partitions", {"days_ahead": days_ahead})
