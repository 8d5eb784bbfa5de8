"""Read queues: what waits and runs in each, and who would take it."""

from typing import Any

from psycopg.rows import DictRow

from dagmaster.store.connect import Connection
from dagmaster.store.statements import fetch, run

Row = dict[str, Any]


async def list_queues(conn: Connection, *, lost_after_seconds: float) -> list[Row]:
    return await fetch(conn, "view_queues", {"lost_after_seconds": lost_after_seconds})


async def waiting_handlers(conn: Connection) -> list[Row]:
    return await fetch(conn, "waiting_handlers")


async def queue_depths(conn: Connection) -> list[DictRow]:
    return await fetch(conn, "queue_depths")


async def unserved_tasks(conn: Connection, job_id: int) -> list[DictRow]:
    """Queue, handler and number of a job's tasks that no worker would take."""
    return await fetch(conn, "unserved_tasks", {"job_id": job_id})


async def open_depths(conn: Connection) -> dict[str, int]:
    rows = await (await run(conn, "open_depths")).fetchall()
    return {row["queue"]: row["depth"] for row in rows}
