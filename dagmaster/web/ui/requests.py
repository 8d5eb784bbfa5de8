"""Requests: find one by the sender's id, with its job and asset."""

from typing import Annotated, Final

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse

from dagmaster.model.redact import redact
from dagmaster.model.states import JobStatus
from dagmaster.store.api_requests import list_requests
from dagmaster.web.access import ASSET_VIEWERS
from dagmaster.web.assets import platform_of
from dagmaster.web.services import Conn
from dagmaster.web.ui.pages import Shown, paged

router = APIRouter(prefix="/ui", include_in_schema=False)

PAGE_SIZE: Final = 50


@router.get("/requests", dependencies=[ASSET_VIEWERS])
async def show_requests(
    page: Shown,
    conn: Conn,
    text: Annotated[str, Query(max_length=200)] = "",
    status: str = "",
    offset: Annotated[int, Query(ge=0)] = 0,
) -> HTMLResponse:
    text, status = text.strip(), status if status in set(JobStatus) else ""
    rows = await list_requests(
        conn,
        platform_id=platform_of(page.caller),
        status=status or None,
        text=text or None,
        limit=PAGE_SIZE + 1,
        offset=offset,
    )
    return page.render(
        "requests.html",
        {
            "requests": [{"row": row, "error": redact(row["error_message"])} for row in rows[:PAGE_SIZE]],
            **paged(rows, PAGE_SIZE, offset),
            "text": text,
            "status": status,
            "all_statuses": list(JobStatus),
        },
    )
