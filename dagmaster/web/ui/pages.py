"""Shared by all pages: the templates, the caller, and ETags."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Annotated, Any, Final
from urllib.parse import urlencode

from fastapi import Depends, Request, Response
from fastapi.responses import HTMLResponse
from jinja2 import Environment, PackageLoader, StrictUndefined

from dagmaster.model.states import JOB_TERMINAL
from dagmaster.store.connect import Connection
from dagmaster.store.events import last_event_of_job
from dagmaster.web.access import OPERATING, REVIEWING, SUBMITTING, Admitted, Caller, Job
from dagmaster.web.services import Conn, Services, ServicesDep
from dagmaster.web.ui.change_feed import beat_now
from dagmaster.web.ui.filters import FILTERS, share
from dagmaster.web.ui.navigation import current_place, places_for
from dagmaster.web.ui.static_files import static


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("dagmaster.web", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(FILTERS)
    environment.globals.update(share=share, static=static, version=version("dagmaster"))
    return environment


TEMPLATES: Final = _environment()


@dataclass(frozen=True, slots=True)
class Page:
    """The context of a page in templates. `beat` identifies how recent its data is."""

    request: Request
    services: Services
    caller: Caller
    beat: int = 0

    @property
    def may_operate(self) -> bool:
        return self.caller.role in OPERATING

    @property
    def may_submit(self) -> bool:
        return self.caller.role in SUBMITTING

    @property
    def may_review(self) -> bool:
        return self.caller.role in REVIEWING

    @property
    def is_signed_in(self) -> bool:
        return bool(self.caller.csrf)

    def with_query(self, **changed: Any) -> str:
        """The URL of this page with changed filters; None removes one."""
        query = [pair for pair in self.request.query_params.multi_items() if pair[0] not in changed]
        parameters = [(name, value) for name, value in (*query, *changed.items()) if value not in (None, "")]
        return f"{self.request.url.path}?{urlencode(parameters)}" if parameters else self.request.url.path

    def render(self, template: str, values: Mapping[str, Any] | None = None, *, status: int = 200) -> HTMLResponse:
        text = TEMPLATES.get_template(template).render(
            page=self,
            places=places_for(self.caller),
            place=current_place(self.request.url.path),
            now=datetime.now(UTC),
            **(values or {}),
        )
        return HTMLResponse(text, status, headers={"Cache-Control": "no-store"})


def paged(rows: Sequence[Any], size: int, offset: int) -> dict[str, Any]:
    """The values of a paged list; the query returns one row more than `size` if there are more."""
    return {"has_more": len(rows) > size, "page_size": size, "offset": offset}


async def page_of(request: Request, services: ServicesDep, caller: Admitted, conn: Conn) -> Page:
    return Page(request, services, caller, await beat_now(conn))


Shown = Annotated[Page, Depends(page_of)]


async def job_shown(page: Shown, job: Job) -> dict[str, Any]:
    """Read after the beat of the page: a page that is older than its beat would never be refreshed."""
    return job


ShownJob = Annotated[dict[str, Any], Depends(job_shown)]


async def mark_of(conn: Connection, job: dict[str, Any]) -> str:
    """The ETag of a page of an ended job, so that it is not rendered again when other jobs change; empty while it runs.

    Read before the rest: a page may be newer than its ETag, never older.
    """
    if job["status"] not in JOB_TERMINAL:
        return ""
    return f'"{job["version"]}-{await last_event_of_job(conn, job)}"'


def unchanged(page: Page, mark: str) -> Response | None:
    """The 304 response for a page that is up to date."""
    is_known = bool(mark) and page.request.headers.get("if-none-match") == mark
    return Response(status_code=304) if is_known else None
