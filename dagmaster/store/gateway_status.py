"""The gateway's reads for operators, from its views. Nothing here writes."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from dagmaster.errors import UnknownJob
from dagmaster.store.connect import Connection, Row, required
from dagmaster.store.statements import fetch, fetch_one

MAX_RESULT_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class JobFilter:
    status: str | None = None
    workflow_id: str | None = None
    correlation_id: str | None = None
    idempotency_key: str | None = None
    only_live: bool = False
    only_orphans: bool = False


async def list_jobs(
    conn: Connection, where: JobFilter, *, orphan_seconds: float, limit: int, offset: int = 0
) -> list[Row]:
    """The newest first."""
    values = {**asdict(where), "orphan_seconds": orphan_seconds, "limit": limit, "offset": offset}
    return await fetch(conn, "gateway_jobs", values)


async def get_job(conn: Connection, job_id: int, *, orphan_seconds: float) -> Row:
    values = {"job_id": job_id, "orphan_seconds": orphan_seconds, "max_result_bytes": MAX_RESULT_BYTES}
    return required(await fetch_one(conn, "gateway_job", values), UnknownJob(f"there is no job {job_id}"))


async def list_nodes(conn: Connection, job_ids: Sequence[int], *, limit: int, offset: int = 0) -> list[Row]:
    return await fetch(conn, "gateway_nodes", {"job_ids": list(job_ids), "limit": limit, "offset": offset})


async def list_nodes_by_status(conn: Connection, status: str, *, hours: int, limit: int, offset: int) -> list[Row]:
    """The last changed first, of jobs that are unfinished or ended in the last hours."""
    values = {"status": status, "hours": hours, "limit": limit, "offset": offset}
    return await fetch(conn, "gateway_nodes_by_status", values)


async def list_events(conn: Connection, job_id: int, *, limit: int, offset: int) -> list[Row]:
    return await fetch(conn, "gateway_events", {"job_id": job_id, "limit": limit, "offset": offset})


async def list_recent_events(conn: Connection, *, hours: int, limit: int, offset: int) -> list[Row]:
    """The newest first."""
    return await fetch(conn, "gateway_recent_events", {"hours": hours, "limit": limit, "offset": offset})


async def list_workflows(conn: Connection, *, limit: int, offset: int) -> list[Row]:
    return await fetch(conn, "gateway_workflows", {"limit": limit, "offset": offset})


async def read_stats(conn: Connection) -> Row:
    [row] = await fetch(conn, "gateway_stats", {})
    return row
