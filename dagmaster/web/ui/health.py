"""Health: every check, the doctor's findings, the database, versions and settings."""

import platform
from dataclasses import asdict
from importlib.metadata import version
from typing import Any, Final

from fastapi import APIRouter
from fastapi.responses import HTMLResponse
from pydantic import SecretStr

from dagmaster.model.redact import HIDDEN, redact
from dagmaster.service.doctor import doctor_limits
from dagmaster.settings import Settings
from dagmaster.store.doctor import CHECKS, Finding
from dagmaster.store.doctor import examine as examine_rules
from dagmaster.store.health import Point, examine_database
from dagmaster.store.schema import list_tables
from dagmaster.web.access import OPERATORS, READERS
from dagmaster.web.checks import Check, Verdict, examine, overall
from dagmaster.web.services import Conn
from dagmaster.web.ui.pages import Shown

router = APIRouter(prefix="/ui", include_in_schema=False)

DOCTOR_DAYS: Final = 1.0
STATES: Final = {"ok": "ok", "warning": "warning", "problem": "error"}
LIBRARIES: Final = ("fastapi", "uvicorn", "pydantic", "psycopg", "jinja2")
SENTENCES: Final = {
    "healthy": "All checks passed",
    "degraded": "Running, but something needs attention",
    "unhealthy": "Not working: see the failed checks",
}
# The page that shows more.
PLACES: Final = {
    "workers": "/ui/workers",
    "orchestrators": "/ui/workers",
    "queues": "/ui/queues",
    "tasks": "/ui/tasks",
    "schedules": "/ui/schedules",
}


@router.get("/health", dependencies=[READERS])
async def show_health(page: Shown, conn: Conn) -> HTMLResponse:
    verdicts = await examine(page.services)
    worst = overall(list(verdicts.values()))
    tables = sorted(await list_tables(conn), key=lambda row: row["bytes"], reverse=True)
    return page.render(
        "health.html",
        {
            "overall": worst,
            "sentence": SENTENCES[worst],
            "checks": [_check(check, verdict) for check, verdict in verdicts.items()],
            "tables": tables,
            "bytes": sum(row["bytes"] for row in tables),
            "versions": {"dagmaster": version("dagmaster"), "Python": platform.python_version()}
            | {name: version(name) for name in LIBRARIES},
            "settings": shown_settings(page.services.settings),
            "started_at": page.services.started_at,
        },
    )


@router.get("/health/doctor", dependencies=[OPERATORS])
async def show_doctor(page: Shown, conn: Conn) -> HTMLResponse:
    """A part of the page, loaded later, because the doctor checks twice and takes a moment."""
    findings = await examine_rules(conn, limits=doctor_limits(page.services.settings, DOCTOR_DAYS))
    points = await examine_database(conn)
    return page.render(
        "doctor.html",
        {
            "findings": [_finding(finding) for finding in findings],
            "points": [_point(point) for point in points],
            "check_count": len(CHECKS),
        },
    )


def _check(check: Check, verdict: Verdict) -> dict[str, Any]:
    return {
        "name": check.name,
        "category": check.category,
        "status": verdict.health,
        "message": verdict.message,
        "details": redact(verdict.details),
        "place": PLACES.get(check.name),
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        **asdict(finding),
        "status": STATES[finding.severity],
        "meaning": finding.meaning.replace("--repair", "Repair"),
        "examples": [redact({name: str(value) for name, value in row.items()}) for row in finding.examples],
    }


def _point(point: Point) -> dict[str, Any]:
    name = point.name.replace("_", " ")
    return {"name": name, "status": STATES[point.state], "sentence": redact(point.sentence)}


def shown_settings(settings: Settings) -> list[tuple[str, str, bool]]:
    """Name, value, and whether it differs from the default; without secrets."""
    lines = []
    for name, value in settings:
        is_secret = isinstance(value, SecretStr)
        text = HIDDEN if is_secret else ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        if value not in (None, [], ""):
            lines.append((name, redact(text), name in settings.model_fields_set))
    return lines
