"""Cached results of tasks: by handler, version and parameters."""

import psycopg

from dagmaster.errors import Invalid
from dagmaster.ids import TaskId, WorkerId
from dagmaster.store.connect import Connection, Row, storable
from dagmaster.store.statements import fetch, fetch_one, run


async def recall_result(conn: Connection, worker_id: WorkerId, task_id: TaskId, version: str) -> Row | None:
    """The output, job and time of a cached result for this task, which the worker must hold."""
    values = {"worker_id": worker_id, "task_id": task_id, "version": version}
    return await fetch_one(conn, "recall_result", values)


async def remember_result(
    conn: Connection, worker_id: WorkerId, task_id: TaskId, version: str, output: bytes, seconds: float | None
) -> None:
    """`seconds` None means forever. Nothing is cached for a task that the worker does not hold."""
    values = {
        "worker_id": worker_id,
        "task_id": task_id,
        "version": version,
        "output": output.decode(),
        "seconds": seconds,
    }
    try:
        await run(conn, "remember_result", values)
    except psycopg.DataError as error:
        raise Invalid(f"the result cannot be cached: {error.diag.message_primary}") from error


async def clear_results(conn: Connection, handler: str | None, *, actor: str | None, source_app: str) -> int:
    """Clear the results of this handler, or all, and return their number."""
    name = storable(handler) if handler is not None else None
    values = {"handler": name, "actor": actor, "source_app": source_app}
    [row] = await fetch(conn, "clear_results", values)
    return int(row["removed"])
