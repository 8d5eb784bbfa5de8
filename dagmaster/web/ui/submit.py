"""Submit a job: choose a workflow and fill in its inputs."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse

from dagmaster.model.params import described
from dagmaster.model.redact import redact
from dagmaster.model.workflow import Workflow
from dagmaster.store.jobs import get_job
from dagmaster.web.access import SUBMITTERS, Caller, as_job_id, check_visible
from dagmaster.web.services import Conn, Services
from dagmaster.web.ui.forms import Form, form_of
from dagmaster.web.ui.pages import Page, Shown

router = APIRouter(prefix="/ui", include_in_schema=False)


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the job besides its inputs."""

    priority: int = 0
    correlation_id: str = ""
    callback_url: str = ""
    metadata: Mapping[str, Any] | None = None

    @property
    def are_set(self) -> bool:
        return self != Options()


@router.get("/submit", dependencies=[SUBMITTERS])
async def show_submit(
    page: Shown,
    conn: Conn,
    workflow: Annotated[str, Query(max_length=64)] = "",
    source: Annotated[str, Query(alias="from", max_length=40)] = "",
) -> HTMLResponse:
    job = await _job(conn, page.caller, source) if source else None
    await page.services.learn(conn)
    workflow_id = workflow.strip() or (job["workflow_id"] if job else "")
    chosen = page.services.catalog.workflows.get(workflow_id)
    values = {
        "choices": choices(page.services),
        "broken": file_errors(page.services),
        "workflow_id": workflow_id,
        "workflow": chosen,
        "job": job,
        "warnings": await page.services.warnings_for(conn, chosen) if chosen else [],
        "form": _form(page.services, chosen, job),
        "options": _options(job),
        "server": server_of(page),
    }
    return page.render("submit.html", values, status=200 if chosen or not workflow_id else 404)


async def _job(conn: Conn, caller: Caller, job_id: str) -> dict[str, Any]:
    job = await get_job(conn, as_job_id(job_id))
    check_visible(job, caller)
    return job


def _form(services: Services, workflow: Workflow | None, job: Mapping[str, Any] | None) -> Form | None:
    if workflow is None:
        return None
    return form_of(described(workflow, services.contracts), job["input_params"] if job else None)


def _options(job: Mapping[str, Any] | None) -> Options:
    """Of the earlier job, without the idempotency key, which would return that job."""
    if job is None:
        return Options()
    metadata = {name: value for name, value in job["metadata"].items() if name != "removal"}
    callback_url = job["callback_url"] or ""
    return Options(
        priority=job["priority"],
        correlation_id=job["correlation_id"] or "",
        callback_url=callback_url if redact(callback_url) == callback_url else "",
        metadata=metadata if metadata and redact(metadata) == metadata else None,
    )


def choices(services: Services) -> list[dict[str, Any]]:
    shown = {"workflow_id", "name", "description", "version", "is_active"}
    flows = services.catalog.workflows
    return [{**flows[name].model_dump(include=shown), "inputs": len(flows[name].inputs)} for name in sorted(flows)]


def file_errors(services: Services) -> list[dict[str, Any]]:
    """The errors in files that could not be loaded."""
    return [
        {"file": Path(file).name, "message": problem.message, "line": problem.line}
        for file, problems in services.catalog.problems.items()
        for problem in problems
        if problem.is_error
    ]


def server_of(page: Page) -> str:
    """The URL of the server as the browser sees it."""
    return str(page.request.base_url).rstrip("/")
