"""Open pages of a job that has ended are not made anew because other jobs work."""

from typing import Any

from fastapi import Response

from dagmaster.model.states import JOB_TERMINAL
from dagmaster.store.connect import Connection
from dagmaster.store.events import last_event_of_job
from dagmaster.web.ui.pages import Page


async def mark_of(conn: Connection, job: dict[str, Any]) -> str:
    """Stays the same until something happens to the job, such as another attempt; empty while it goes on.

    Asked for before the rest is read: a page may be newer than its mark, never older.
    """
    if job["status"] not in JOB_TERMINAL:
        return ""
    return f'"{job["version"]}-{await last_event_of_job(conn, job)}"'


def unchanged(page: Page, mark: str) -> Response | None:
    """The whole answer to a page that already shows this."""
    is_known = bool(mark) and page.request.headers.get("if-none-match") == mark
    return Response(status_code=304) if is_known else None
