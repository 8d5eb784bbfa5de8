"""Schedules: next runs, last run, and their controls."""

from collections.abc import Mapping
from datetime import datetime
from functools import partial
from typing import Any, Final
from zoneinfo import ZoneInfo

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from dagmaster.model.redact import redact
from dagmaster.store.schedules import list_schedules, missed_schedules
from dagmaster.web.access import READERS
from dagmaster.web.services import Conn
from dagmaster.web.ui.pages import Shown

router = APIRouter(prefix="/ui", include_in_schema=False)

Row = Mapping[str, Any]

SHOWN_TIMES: Final = 3
DAYS: Final = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
SHORT_DAYS: Final = {name[:3].lower(): place for place, name in enumerate(DAYS)}
UNITS: Final = (("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1))
CATCHUP: Final = {
    "none": "missed runs are skipped",
    "last": "catches up on the last missed run",
    "all": "catches up on all missed runs",
}


@router.get("/schedules", dependencies=[READERS])
async def show_schedules(page: Shown, conn: Conn, text: str = "", state: str = "") -> HTMLResponse:
    missed = await missed_schedules(conn)
    lines = [schedule_line(row, missed.get(row["schedule_id"])) for row in await list_schedules(conn)]
    needle = text.strip().lower()
    listed = [
        line
        for line in lines
        if needle in line["schedule_id"].lower() and state in ("", "paused" if line["is_paused"] else "active")
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


def schedule_line(row: Row, missed: Row | None) -> Row:
    return {
        **row,
        "words": rule_in_words(row["cron"], row["interval_seconds"], row["timezone"]),
        "catchup_words": CATCHUP[row["catchup"]],
        "inputs": redact(row["input_params"]),
        "is_paused": row["paused_at"] is not None,
        "next_times": row["next_times"][:SHOWN_TIMES],
        "last_status": row["last_job_status"],
        "missed": _missed(missed) if missed else None,
        "local": partial(local_time, row["timezone"]),
    }


def _missed(event: Row) -> Row:
    """Times for which no job was started; without an `error`, no orchestrator was running."""
    return {"at": event["created_at"], "count": event["count"] or 1, "error": redact(event["error_message"])}


def local_time(timezone: str, at: datetime) -> str:
    return f"{at.astimezone(ZoneInfo(timezone)):%a %Y-%m-%d %H:%M:%S %Z}".replace(":00 ", " ")


def rule_in_words(cron: str | None, interval_seconds: float | None, timezone: str) -> str:
    """`every day at 06:00 Europe/Berlin`, `every 45 seconds`."""
    if interval_seconds is not None:
        return f"every {_interval(round(interval_seconds))}"
    assert cron is not None
    words = _cron(cron)
    return f"{words} {timezone}" if words else f"{cron} ({timezone})"


def _interval(seconds: int) -> str:
    for unit, size in UNITS:
        if seconds % size == 0:
            number = seconds // size
            return unit if number == 1 else f"{number} {unit}s"
    raise AssertionError("every number of seconds is a number of seconds")


def _cron(cron: str) -> str | None:
    minute, hour, day, month, weekday = cron.split()
    days = _days(day, month, weekday)
    times = _times(minute, hour)
    if days is None or times is None:
        return None
    is_often = not times.startswith("at ")
    if days == "every day" and is_often:
        return times
    return f"{times}, {days}" if is_often else f"{days} {times}"


def _times(minute: str, hour: str) -> str | None:
    if minute.isdecimal() and all(part.isdecimal() for part in hour.split(",")):
        return "at " + _join([f"{int(part):02}:{int(minute):02}" for part in hour.split(",")])
    if minute == "*":
        often = "every minute"
    elif minute.startswith("*/") and minute[2:].isdecimal():
        often = f"every {minute[2:]} minutes"
    elif minute.isdecimal():
        often = "every hour" if minute == "0" else f"every hour at minute {int(minute)}"
    else:
        return None
    if hour == "*":
        return often
    if hour.startswith("*/") and hour[2:].isdecimal() and minute.isdecimal():
        return f"every {hour[2:]} hours" + ("" if minute == "0" else f" at minute {int(minute)}")
    start, dash, end = hour.partition("-")
    if dash and start.isdecimal() and end.isdecimal():
        return f"{often} from {int(start):02}:00 to {int(end):02}:59"
    return None


def _days(day: str, month: str, weekday: str) -> str | None:
    if month != "*" or (day != "*" and weekday != "*"):
        return None
    if day != "*":
        return f"on day {int(day)} of every month" if day.isdecimal() else None
    if weekday == "*":
        return "every day"
    if weekday.lower() in ("1-5", "mon-fri"):
        return "Monday to Friday"
    names = [_day(part) for part in weekday.split(",")]
    return None if None in names else "every " + _join([name for name in names if name])


def _day(text: str) -> str | None:
    place = int(text) % 7 if text.isdecimal() else SHORT_DAYS.get(text.lower())
    return None if place is None else DAYS[place]


def _join(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
