"""The list of jobs: find some, and steer many at once."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse

from dagmaster.model.redact import redact
from dagmaster.model.states import JOB_TERMINAL, JobStatus
from dagmaster.store.looking import JobFilter, NodeCounts, find_jobs
from dagmaster.web.access import READERS_OF_OWN
from dagmaster.web.services import Conn
from dagmaster.web.ui.pages import Page, Shown
from dagmaster.web.views import seconds_between

router = APIRouter(prefix="/ui", include_in_schema=False)

PAGE_SIZE: Final = 50
PERIODS: Final = {
    "1h": timedelta(hours=1),
    "24h": timedelta(days=1),
    "7d": timedelta(days=7),
    "30d": timedelta(days=30),
}


@dataclass(frozen=True, slots=True)
class JobLine:
    """A job in a list. `counts` are its nodes by status."""

    job_id: str
    workflow_id: str
    status: str
    is_paused: bool
    error: str | None
    submitted_by: str
    correlation_id: str | None
    schedule_id: str | None
    created_at: datetime
    started_at: datetime | None
    completed_at: datetime | None
    seconds: float | None
    counts: Mapping[str, int]

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    @property
    def done(self) -> int:
        return sum(self.counts.get(status, 0) for status in ("completed", "skipped", "failed"))

    @property
    def is_over(self) -> bool:
        return self.status in JOB_TERMINAL


def job_line(row: Mapping[str, Any], counts: Mapping[str, int]) -> JobLine:
    return JobLine(
        job_id=str(row["job_id"]),
        workflow_id=row["workflow_id"],
        status=row["status"],
        is_paused=row["paused_at"] is not None,
        error=redact(row["error_message"]),
        submitted_by=row["submitted_by"],
        correlation_id=row["correlation_id"],
        schedule_id=row["schedule_id"],
        created_at=row["created_at"],
        started_at=row["started_at"],
        completed_at=row["completed_at"],
        seconds=seconds_between(row["started_at"], row["completed_at"]),
        counts=counts,
    )


async def job_lines(
    conn: Conn, node_counts: NodeCounts, wanted: JobFilter, *, limit: int, offset: int = 0
) -> list[JobLine]:
    rows = await find_jobs(conn, wanted, limit=limit, offset=offset)
    counts = await node_counts.of(conn, rows)
    return [job_line(row, counts[row["job_id"]]) for row in rows]


@router.get("/jobs", dependencies=[READERS_OF_OWN])
async def show_jobs(
    page: Shown,
    conn: Conn,
    status: Annotated[list[str] | None, Query()] = None,
    workflow: str = "",
    text: Annotated[str, Query(max_length=200)] = "",
    period: str = "",
    schedule: str = "",
    offset: Annotated[int, Query(ge=0)] = 0,
) -> HTMLResponse:
    statuses = [one for one in status or () if one in set(JobStatus)]
    wanted = JobFilter(
        statuses=statuses,
        workflow_id=workflow.strip() or None,
        submitted_by=page.caller.name if page.caller.is_partner else None,
        schedule_id=schedule or None,
        since=datetime.now(UTC) - PERIODS[period] if period in PERIODS else None,
        text=text.strip() or None,
    )
    lines = await job_lines(conn, page.services.node_counts, wanted, limit=PAGE_SIZE + 1, offset=offset)
    return page.render(
        "jobs.html",
        {
            "jobs": lines[:PAGE_SIZE],
            "has_more": len(lines) > PAGE_SIZE,
            "offset": offset,
            "page_size": PAGE_SIZE,
            "statuses": statuses,
            "workflow": workflow,
            "text": text,
            "period": period,
            "schedule": schedule,
            "periods": list(PERIODS),
            "all_statuses": list(JobStatus),
            "workflow_ids": workflow_ids(page),
            "is_filtered": bool(statuses or workflow or text or period or schedule),
        },
    )


def workflow_ids(page: Page) -> list[str]:
    return sorted(page.services.catalog.workflows)
