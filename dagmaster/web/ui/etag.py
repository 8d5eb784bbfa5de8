"""ETags, so that open pages of an ended job are not rendered again when other jobs change."""

from typing import Any

from fastapi import Response

from dagmaster.model.states import JOB_TERMINAL
from dagmaster.store.connect import Connection
from dagmaster.store.events import last_event_of_job
from dagmaster.web.ui.pages import Page


async def mark_of(conn: Connection, job: dict[str, Any]) -> str:
    """Constant until the job changes, for example by a retry; empty while it runs.

    Read before the rest: a page may be newer than its ETag, never older.
    """
    if job["status"] not in JOB_TERMINAL:
        return ""
    return f'"{job["version"]}-{await last_event_of_job(conn, job)}"'


def unchanged(page: Page, mark: str) -> Response | None:
    """The 304 response for a page that is up to date."""
    is_known = bool(mark) and page.request.headers.get("if-none-match") == mark
    return Response(status_code=304) if is_known else None
