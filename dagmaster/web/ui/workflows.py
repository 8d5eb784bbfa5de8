"""The list of workflows, loaded or known from their jobs, and problems of their files."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse

from dagmaster.authoring.catalog import Catalog
from dagmaster.ids import JobId
from dagmaster.model.problems import Problem
from dagmaster.store.connect import Connection
from dagmaster.store.schedules import list_schedules
from dagmaster.store.signals import external_waits
from dagmaster.store.workflows import newest_versions, runs_by_workflow
from dagmaster.web.access import READERS
from dagmaster.web.services import Conn
from dagmaster.web.ui.charts import Ticks, draw_ticks, median_seconds
from dagmaster.web.ui.jobs import waits_for
from dagmaster.web.ui.pages import Shown

router = APIRouter(prefix="/ui", include_in_schema=False)

Row = Mapping[str, Any]

MOST: Final = 500
RUNS: Final = 50


@dataclass(frozen=True, slots=True)
class LastRun:
    """`waits_for` is a decision or a signal, in a few words."""

    job_id: str
    status: str
    at: datetime
    waits_for: str | None = None


@dataclass(frozen=True, slots=True)
class ScheduleState:
    """`next_at` is None while it is paused."""

    rule: str
    timezone: str
    is_paused: bool
    is_late: bool
    next_at: datetime | None


@dataclass(frozen=True, slots=True)
class WorkflowLine:
    """`is_loaded` is false for a workflow that is known only from its jobs and cannot be started here."""

    workflow_id: str
    name: str
    description: str
    version: int | None
    is_active: bool
    is_loaded: bool
    last: LastRun | None
    ticks: Ticks
    seconds: float | None
    schedule: ScheduleState | None


@dataclass(frozen=True, slots=True)
class BrokenFile:
    name: str
    is_loaded: bool
    problems: tuple[Problem, ...]


@router.get("/workflows", dependencies=[READERS])
async def show_workflows(page: Shown, conn: Conn, text: Annotated[str, Query(max_length=200)] = "") -> HTMLResponse:
    catalog = page.services.catalog
    runs = await runs_by_workflow(conn, workflows=MOST, runs=RUNS)
    pinned = await newest_versions(conn, [name for name in runs if name not in catalog.workflows])
    schedules = {row["schedule_id"]: schedule_state(row) for row in await list_schedules(conn)}
    waiting = await waiting_runs(conn, runs.values())
    lines = [*_loaded(catalog, runs, waiting, schedules), *_gone(runs, waiting, pinned, schedules)]
    matches = [line for line in lines if _matches(line, text.strip().lower())]
    return page.render(
        "workflows.html",
        {
            "workflows": sorted(matches, key=lambda line: line.workflow_id),
            "text": text,
            "total": len(lines),
            "files": broken_files(catalog),
            "runs": RUNS,
        },
    )


def schedule_state(row: Row) -> ScheduleState:
    """From a row of `list_schedules`."""
    is_paused = row["paused_at"] is not None
    return ScheduleState(row["rule"], row["timezone"], is_paused, row["is_late"], None if is_paused else row["next_at"])


async def waiting_runs(conn: Connection, runs: Iterable[Sequence[Row]]) -> Mapping[JobId, Row]:
    """The newest runs that wait for a decision or a signal, by job."""
    return await external_waits(conn, [ran[0]["job_id"] for ran in runs if ran and ran[0]["status"] == "running"])


def last_run(runs: Sequence[Row], waiting: Mapping[JobId, Row]) -> LastRun | None:
    if not runs:
        return None
    awaited = waiting.get(runs[0]["job_id"])
    waits = waits_for(awaited) if awaited else None
    return LastRun(str(runs[0]["job_id"]), runs[0]["status"], runs[0]["created_at"], waits)


def broken_files(catalog: Catalog) -> list[BrokenFile]:
    """Files that cannot be loaded first; their folder is not disclosed."""
    loaded = set(catalog.sources.values())
    files = [
        BrokenFile(Path(file).name, file in loaded, tuple(sorted(problems, key=lambda problem: not problem.is_error)))
        for file, problems in catalog.problems.items()
    ]
    return sorted(files, key=lambda file: (file.is_loaded, file.name))


def _loaded(
    catalog: Catalog,
    runs: Mapping[str, Sequence[Row]],
    waiting: Mapping[JobId, Row],
    schedules: Mapping[str, ScheduleState],
) -> Iterable[WorkflowLine]:
    for workflow_id, workflow in catalog.workflows.items():
        ran = runs.get(workflow_id, ())
        yield WorkflowLine(
            workflow_id=workflow_id,
            name=workflow.name,
            description=workflow.description,
            version=workflow.version,
            is_active=workflow.is_active,
            is_loaded=True,
            last=last_run(ran, waiting),
            ticks=draw_ticks(ran),
            seconds=median_seconds(ran),
            schedule=schedules.get(workflow_id),
        )


def _gone(
    runs: Mapping[str, Sequence[Row]],
    waiting: Mapping[JobId, Row],
    pinned: Mapping[str, Row],
    schedules: Mapping[str, ScheduleState],
) -> Iterable[WorkflowLine]:
    """Workflows that have run but are in no file: removed, of another server, or defined in Python."""
    for workflow_id, definition in pinned.items():
        ran = runs[workflow_id]
        yield WorkflowLine(
            workflow_id=workflow_id,
            name=definition["name"] or workflow_id,
            description=definition["description"] or "",
            version=definition["version"],
            is_active=True,
            is_loaded=False,
            last=last_run(ran, waiting),
            ticks=draw_ticks(ran),
            seconds=median_seconds(ran),
            schedule=schedules.get(workflow_id),
        )


def _matches(line: WorkflowLine, text: str) -> bool:
    return any(text in value.lower() for value in (line.workflow_id, line.name, line.description))
