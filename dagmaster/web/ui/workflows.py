"""The list of workflows, loaded or known from their jobs, and problems of their files."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse

from dagmaster.authoring.catalog import Catalog
from dagmaster.ids import JobId
from dagmaster.store.connect import Connection
from dagmaster.store.schedules import list_schedules
from dagmaster.store.signals import external_waits
from dagmaster.store.workflows import newest_versions, runs_by_workflow
from dagmaster.web.access import READERS
from dagmaster.web.services import Conn
from dagmaster.web.ui.charts import draw_ticks, median_seconds
from dagmaster.web.ui.jobs import waits_for
from dagmaster.web.ui.pages import Shown

router = APIRouter(prefix="/ui", include_in_schema=False)

Row = Mapping[str, Any]

MOST: Final = 500
RUNS: Final = 50


@router.get("/workflows", dependencies=[READERS])
async def show_workflows(page: Shown, conn: Conn, text: Annotated[str, Query(max_length=200)] = "") -> HTMLResponse:
    catalog = page.services.catalog
    runs = await runs_by_workflow(conn, workflows=MOST, runs=RUNS)
    pinned = await newest_versions(conn, [name for name in runs if name not in catalog.workflows])
    schedules = {row["schedule_id"]: schedule_state(row) for row in await list_schedules(conn)}
    waiting = await waiting_runs(conn, runs.values())
    known = {**_loaded(catalog), **_gone(pinned)}
    workflows = [
        {
            **workflow,
            "last": last_run(ran := runs.get(workflow_id, []), waiting),
            "ticks": draw_ticks(ran),
            "seconds": median_seconds(ran),
            "schedule": schedules.get(workflow_id),
        }
        for workflow_id, workflow in sorted(known.items())
        if _matches(workflow, text.strip().lower())
    ]
    return page.render(
        "workflows.html",
        {"workflows": workflows, "text": text, "total": len(known), "files": broken_files(catalog), "runs": RUNS},
    )


def schedule_state(row: Row) -> Row:
    """From a row of `list_schedules`. `next_at` is None while it is paused."""
    is_paused = row["paused_at"] is not None
    return {**row, "is_paused": is_paused, "next_at": None if is_paused else row["next_at"]}


async def waiting_runs(conn: Connection, runs: Iterable[Sequence[Row]]) -> Mapping[JobId, Row]:
    """The newest runs that wait for a decision or a signal, by job."""
    return await external_waits(conn, [ran[0]["job_id"] for ran in runs if ran and ran[0]["status"] == "running"])


def last_run(runs: Sequence[Row], waiting: Mapping[JobId, Row]) -> Row | None:
    """`waits_for` is a decision or a signal, in a few words."""
    if not runs:
        return None
    awaited = waiting.get(runs[0]["job_id"])
    return {**runs[0], "at": runs[0]["created_at"], "waits_for": waits_for(awaited) if awaited else None}


def broken_files(catalog: Catalog) -> list[Row]:
    """Files that cannot be loaded first. Their folder is not disclosed unless it is below the working folder."""
    loaded = set(catalog.sources.values())
    files: list[Row] = [
        {
            "name": Path(file).name,
            "path": Path(file).name if Path(file).is_absolute() else file,
            "is_loaded": file in loaded,
            "problems": sorted(problems, key=lambda problem: not problem.is_error),
        }
        for file, problems in catalog.problems.items()
    ]
    return sorted(files, key=lambda file: (file["is_loaded"], file["name"]))


def _loaded(catalog: Catalog) -> dict[str, Row]:
    shown = {"workflow_id", "name", "description", "version", "is_active"}
    return {
        workflow_id: {**workflow.model_dump(include=shown), "is_loaded": True}
        for workflow_id, workflow in catalog.workflows.items()
    }


def _gone(pinned: Mapping[str, Row]) -> dict[str, Row]:
    """Workflows that have run but are in no file: removed, of another server, or defined in Python."""
    return {
        workflow_id: {
            "workflow_id": workflow_id,
            "name": definition["name"] or workflow_id,
            "description": definition["description"] or "",
            "version": definition["version"],
            "is_active": True,
            "is_loaded": False,
        }
        for workflow_id, definition in pinned.items()
    }


def _matches(workflow: Row, text: str) -> bool:
    return any(text in workflow[name].lower() for name in ("workflow_id", "name", "description"))
