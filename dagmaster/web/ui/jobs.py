"""The list of jobs: find jobs, and control many at once."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse
from pydantic import AwareDatetime

from dagmaster.ids import ScheduleId
from dagmaster.model.redact import redact
from dagmaster.model.states import JOB_TERMINAL, JobStatus
from dagmaster.store.jobs import JobFilter, list_jobs
from dagmaster.store.node_counts import NodeCounts
from dagmaster.store.signals import external_waits
from dagmaster.web.access import READERS_OF_OWN
from dagmaster.web.services import Conn
from dagmaster.web.ui.list_filters import ENDED, PERIOD_NAMES, FromAddress
from dagmaster.web.ui.pages import Page, Shown, paged
from dagmaster.web.views import run_seconds

router = APIRouter(prefix="/ui", include_in_schema=False)

PAGE_SIZE: Final = 50


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
    schedule_id: ScheduleId | None
    created_at: datetime
    started_at: datetime | None
    completed_at: datetime | None
    seconds: float | None
    counts: Mapping[str, int]
    idle_seconds: float = 0.0
    waits_for: str | None = None

    @property
    def running_since(self) -> datetime | None:
        """The start, shifted by the idle time."""
        return self.started_at + timedelta(seconds=self.idle_seconds) if self.started_at else None

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    @property
    def is_over(self) -> bool:
        return self.status in JOB_TERMINAL


def job_line(row: Mapping[str, Any], counts: Mapping[str, int], waiting: Mapping[str, Any] | None = None) -> JobLine:
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
        seconds=run_seconds(row),
        counts=counts,
        idle_seconds=row["idle_seconds"],
        waits_for=waits_for(waiting) if waiting else None,
    )


async def job_lines(
    conn: Conn, node_counts: NodeCounts, filter: JobFilter, *, limit: int, offset: int = 0
) -> list[JobLine]:
    rows = await list_jobs(conn, filter, limit=limit, offset=offset)
    known = await node_counts.of(conn, rows)
    waiting = await external_waits(conn, [row["job_id"] for row in rows if row["status"] == JobStatus.RUNNING])
    return [job_line(row, known[row["job_id"]].counts, waiting.get(row["job_id"])) for row in rows]


def waits_for(waiting: Mapping[str, Any]) -> str:
    """A short label of what the job waits for."""
    return "needs approval" if waiting["waits_for"] == "approval" else f"awaits signal {waiting['signal']}"


@router.get("/jobs", dependencies=[READERS_OF_OWN])
async def show_jobs(
    page: Shown,
    conn: Conn,
    query: FromAddress,
    schedule: str = "",
    ended_after: AwareDatetime | None = None,
    offset: Annotated[int, Query(ge=0)] = 0,
) -> HTMLResponse:
    statuses = query.statuses(list(JobStatus))
    filter = JobFilter(
        statuses=statuses,
        workflow_id=query.workflow or None,
        submitted_by=page.caller.name if page.caller.is_partner else None,
        schedule_id=schedule or None,
        since=query.created_since,
        ended_since=ended_after or query.ended_since,
        text=query.text or None,
    )
    lines = await job_lines(conn, page.services.node_counts, filter, limit=PAGE_SIZE + 1, offset=offset)
    return page.render(
        "jobs.html",
        {
            "jobs": lines[:PAGE_SIZE],
            **paged(lines, PAGE_SIZE, offset),
            "query": query,
            "statuses": statuses,
            "schedule": schedule,
            "ended_after": ended_after,
            "periods": {
                "Created": PERIOD_NAMES,
                "Ended": {ENDED + period: name for period, name in PERIOD_NAMES.items()},
            },
            "all_statuses": list(JobStatus),
            "workflow_ids": workflow_ids(page),
            "is_filtered": bool(statuses or query.workflow or query.text or query.period or schedule or ended_after),
        },
    )


def workflow_ids(page: Page) -> list[str]:
    return sorted(page.services.catalog.workflows)
