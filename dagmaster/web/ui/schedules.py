"""Schedules: next runs, last run, and their controls."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from zoneinfo import ZoneInfo

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from dagmaster.ids import ScheduleId
from dagmaster.model.redact import redact
from dagmaster.store.schedules import list_schedules, missed_schedules
from dagmaster.web.access import READERS
from dagmaster.web.services import Conn
from dagmaster.web.ui.pages import Shown
from dagmaster.web.ui.rules import rule_in_words

router = APIRouter(prefix="/ui", include_in_schema=False)

SHOWN_TIMES: Final = 3
CATCHUP: Final = {
    "none": "missed runs are skipped",
    "last": "catches up on the last missed run",
    "all": "catches up on all missed runs",
}


@dataclass(frozen=True, slots=True)
class Missed:
    """Times for which no job was started; without an `error`, no orchestrator was running."""

    at: datetime
    count: int
    error: str | None


@dataclass(frozen=True, slots=True)
class ScheduleLine:
    schedule_id: ScheduleId
    workflow_id: str
    words: str
    rule: str
    timezone: str
    catchup: str
    catchup_words: str
    inputs: Mapping[str, Any]
    is_paused: bool
    paused_by: str | None
    paused_at: datetime | None
    is_late: bool
    next_times: tuple[datetime, ...]
    last_at: datetime | None
    last_job_id: str | None
    last_status: str | None
    missed: Missed | None

    def local(self, at: datetime) -> str:
        """In the schedule's time zone."""
        return f"{at.astimezone(ZoneInfo(self.timezone)):%a %Y-%m-%d %H:%M:%S %Z}".replace(":00 ", " ")


@router.get("/schedules", dependencies=[READERS])
async def show_schedules(page: Shown, conn: Conn, text: str = "", state: str = "") -> HTMLResponse:
    missed = await missed_schedules(conn)
    lines = [schedule_line(row, missed.get(row["schedule_id"])) for row in await list_schedules(conn)]
    needle = text.strip().lower()
    listed = [
        line
        for line in lines
        if needle in line.schedule_id.lower() and state in ("", "paused" if line.is_paused else "active")
    ]
    return page.render(
        "schedules.html",
        {
            "schedules": listed,
            "total": len(lines),
            "text": text,
            "state": state,
            "states": ("active", "paused"),
            "is_filtered": bool(needle or state),
        },
    )


def schedule_line(row: Mapping[str, Any], missed: Mapping[str, Any] | None) -> ScheduleLine:
    return ScheduleLine(
        schedule_id=row["schedule_id"],
        workflow_id=row["workflow_id"],
        words=rule_in_words(row["cron"], row["interval_seconds"], row["timezone"]),
        rule=row["rule"],
        timezone=row["timezone"],
        catchup=row["catchup"],
        catchup_words=CATCHUP[row["catchup"]],
        inputs=redact(row["input_params"]),
        is_paused=row["paused_at"] is not None,
        paused_by=row["paused_by"],
        paused_at=row["paused_at"],
        is_late=row["is_late"],
        next_times=tuple(row["next_times"][:SHOWN_TIMES]),
        last_at=row["last_at"],
        last_job_id=None if row["last_job_id"] is None else str(row["last_job_id"]),
        last_status=row["last_job_status"],
        missed=Missed(missed["created_at"], missed["count"] or 1, redact(missed["error_message"])) if missed else None,
    )
