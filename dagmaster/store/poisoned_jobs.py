"""Jobs that their owner cannot process."""

from typing import Any

import orjson

from dagmaster.ids import JobId
from dagmaster.store.connect import Connection, storable
from dagmaster.store.statements import run

Row = dict[str, Any]


async def fail_poisoned(conn: Connection, owner_id: str, job_id: JobId, error: str) -> bool:
    """End a job that cannot be processed; False when it is no longer this owner's."""
    cursor = await run(conn, "fail_poisoned_job", {"job_id": job_id, "owner_id": owner_id, "error": storable(error)})
    if await cursor.fetchone() is not None:
        return True
    await run(conn, "let_go_ended_job", {"job_id": job_id, "owner_id": owner_id, "error": storable(error)})
    return False


async def note_error(conn: Connection, job_id: JobId, error: str, *, strike: int) -> None:
    values = {"job_id": job_id, "error": storable(error), "data": orjson.dumps({"strike": strike}).decode()}
    await run(conn, "note_error", values)
