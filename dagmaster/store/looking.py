"""What the pages look for: jobs by what is known of them, and signs that something has happened."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from dagmaster.store.connect import Connection
from dagmaster.store.statements import run

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Of each thing that is given, only what fits."""

    statuses: Sequence[str] = ()
    workflow_id: str | None = None
    submitted_by: str | None = None
    schedule_id: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    text: str | None = None


async def last_event_id(conn: Connection) -> int:
    row = await (await run(conn, "last_event_id")).fetchone()
    return int(row["event_id"]) if row else 0


async def find_jobs(conn: Connection, wanted: JobFilter, *, limit: int, offset: int = 0) -> list[Row]:
    """The newest first."""
    values = {
        "statuses": list(wanted.statuses) or None,
        "workflow_id": wanted.workflow_id,
        "submitted_by": wanted.submitted_by,
        "schedule_id": wanted.schedule_id,
        "since": wanted.since,
        "until": wanted.until,
        "text": wanted.text,
        "pattern": literal(wanted.text) if wanted.text else None,
        "limit": limit,
        "offset": offset,
    }
    return await (await run(conn, "find_jobs", values)).fetchall()


async def count_nodes_of_jobs(conn: Connection, job_ids: Sequence[int]) -> dict[int, dict[str, int]]:
    """By job and status."""
    counted: dict[int, dict[str, int]] = {job_id: {} for job_id in job_ids}
    for row in await (await run(conn, "count_nodes_of_jobs", {"job_ids": list(job_ids)})).fetchall():
        counted[row["job_id"]][row["status"]] = row["nodes"]
    return counted


def literal(text: str) -> str:
    """What people type is meant as it stands."""
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
