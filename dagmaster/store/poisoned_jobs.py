"""Jobs that their owner cannot process."""

import orjson

from dagmaster.ids import JobId
from dagmaster.store.connect import Connection, storable
from dagmaster.store.statements import fetch, run


async def fail_poisoned(conn: Connection, owner_id: str, job_id: JobId, error: str) -> bool:
    """Fail a job that cannot be processed; False if this owner no longer owns it."""
    values = {"job_id": job_id, "owner_id": owner_id, "error": storable(error)}
    if await fetch(conn, "fail_poisoned_job", values):
        return True
    await run(conn, "release_ended_job", values)
    return False


async def note_error(conn: Connection, job_id: JobId, error: str, *, strike: int) -> None:
    values = {"job_id": job_id, "error": storable(error), "data": orjson.dumps({"strike": strike}).decode()}
    await run(conn, "note_error", values)
