"""Read jobs: by id, in lists, and the neighbours of a job."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, TypedDict

import orjson

from dagmaster.errors import ExpressionFailed, Invalid, UnknownJob
from dagmaster.ids import JobId
from dagmaster.model.expressions import returned_value
from dagmaster.model.states import JOB_TERMINAL, JobStatus
from dagmaster.store.connect import Connection, Row, escape_like, required
from dagmaster.store.job_states import INLINE_BYTES
from dagmaster.store.nodes import MAX_SHOWN_BYTES
from dagmaster.store.statements import fetch, fetch_as, fetch_one

MAX_ID, ID_DIGITS = 2**63 - 1, 19


def known_job(row: Row | None, job_id: JobId) -> Row:
    """Raises UnknownJob."""
    return required(row, UnknownJob(f"there is no job {job_id}; `dagmaster jobs` lists them"))


async def get_job(conn: Connection, job_id: JobId) -> Row:
    return known_job(await fetch_one(conn, "show_job", {"job_id": job_id}), job_id)


async def get_job_head(conn: Connection, job_id: JobId) -> Row:
    """Without the inputs and the result, which may be large."""
    return known_job(await fetch_one(conn, "show_job_head", {"job_id": job_id}), job_id)


async def get_whole_job(
    conn: Connection, job_id: JobId, *, with_children: bool = False, limit: int = 5000, offset: int = 0
) -> Row:
    """The job with a page of its `nodes`, in one round trip, because clients poll it.

    `input_params` and `result_data` are JSON. Large outputs are left out, and so are outputs beyond a total size.
    """
    values = {
        "job_id": job_id,
        "parent": None,
        "with_children": with_children,
        "status": None,
        "limit": limit,
        "offset": offset,
        "inline_bytes": INLINE_BYTES,
        "max_bytes": MAX_SHOWN_BYTES,
    }
    return known_job(await fetch_one(conn, "show_whole_job", values), job_id)


async def returned_by(conn: Connection, job: Mapping[str, Any]) -> Any:
    """The return value of a completed job's workflow function; None if there is none."""
    if job["status"] != JobStatus.COMPLETED:
        return None
    row = await fetch_one(conn, "returned_by", {"workflow_hash": job["workflow_hash"]})
    returns = row["returns"] if row else None
    if isinstance(returns, bytes):  # Some connections do not decode JSON.
        returns = orjson.loads(returns)
    if returns is None:
        return None
    return await asyncio.to_thread(_returned, returns, job)


def _returned(returns: Any, job: Mapping[str, Any]) -> Any:
    """Inputs and result may be undecoded JSON, and large."""
    inputs, result = (
        orjson.loads(value) if isinstance(value, str) else value for value in (job["input_params"], job["result_data"])
    )
    try:
        return returned_value(returns, result or {}, inputs)
    except ExpressionFailed:  # The node was skipped, or was allowed to fail.
        return None


class JobRow(TypedDict):
    """A job in a list, without its values."""

    job_id: JobId
    workflow_id: str
    workflow_version: int
    workflow_hash: str
    status: str
    priority: int
    error_message: str | None
    submitted_by: str
    correlation_id: str | None
    owner_id: str | None
    paused_at: datetime | None
    idle_seconds: float
    schedule_id: str | None
    parent_job_id: JobId | None
    created_at: datetime
    started_at: datetime | None
    completed_at: datetime | None


@dataclass(frozen=True, slots=True)
class JobFilter:
    """All conditions must hold. `since` and `until` bound the creation; `id_prefix` is the first digits of an id."""

    statuses: Sequence[str] = ()
    workflow_id: str | None = None
    submitted_by: str | None = None
    correlation_id: str | None = None
    schedule_id: str | None = None
    id_prefix: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    ended_since: datetime | None = None
    text: str | None = None

    @property
    def is_live(self) -> bool:
        """Whether only unfinished jobs match."""
        return bool(self.statuses) and not JOB_TERMINAL.intersection(self.statuses)


def statuses_of(name: str | None) -> tuple[str, ...]:
    """For a filter; raises Invalid for an unknown status."""
    if name is None:
        return ()
    if name.lower() not in set(JobStatus):
        raise Invalid(f"{name!r} is not a status; there are {', '.join(JobStatus)}")
    return (name.lower(),)


async def list_jobs(
    conn: Connection, where: JobFilter | None = None, *, limit: int = 50, offset: int = 0
) -> list[JobRow]:
    """The newest first."""
    where = where or JobFilter()
    values = {
        **asdict(where),
        "statuses": list(where.statuses) or None,
        "is_live": where.is_live,
        "job_ids": await find_job_ids(conn, where.id_prefix, limit=limit + offset) if where.id_prefix else None,
        "pattern": escape_like(where.text) if where.text else None,
        "limit": limit,
        "offset": offset,
    }
    return await fetch_as(conn, JobRow, "list_jobs", values)


async def find_job_ids(conn: Connection, prefix: str, *, limit: int) -> list[JobId]:
    """The newest jobs whose ids start with these digits; by id ranges, for the primary key."""
    first = int(prefix)
    scales = [10**length for length in range(ID_DIGITS - len(prefix) + 1)]
    lows = [first * scale for scale in scales if first * scale <= MAX_ID]
    highs = [min((first + 1) * scale - 1, MAX_ID) for scale in scales[: len(lows)]]
    return [row["job_id"] for row in await fetch(conn, "find_job_ids", {"lows": lows, "highs": highs, "limit": limit})]


async def job_status(conn: Connection, job_ids: Sequence[JobId]) -> list[Row]:
    return await fetch(conn, "job_status", {"job_ids": list(job_ids)})


async def child_jobs(conn: Connection, job_id: JobId, *, limit: int) -> list[Row]:
    return await fetch(conn, "page_children", {"job_id": job_id, "limit": limit})


async def neighbours(
    conn: Connection, job: Mapping[str, Any], *, submitted_by: str | None = None, limit: int
) -> list[Row]:
    """So many on each side, the newest first."""
    values = {
        "job_id": job["job_id"],
        "workflow_id": job["workflow_id"],
        "created_at": job["created_at"],
        "submitted_by": submitted_by,
        "limit": limit,
    }
    return await fetch(conn, "page_neighbours", values)
