"""The review queue: versions that wait for a decision, oldest first."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from dagmaster.model.asset import ProcessingStatus
from dagmaster.model.redact import redact
from dagmaster.store.asset_versions import ReviewRow, list_review_queue
from dagmaster.store.platforms import list_platforms
from dagmaster.web.access import ASSET_VIEWERS
from dagmaster.web.assets import platform_of
from dagmaster.web.services import Conn
from dagmaster.web.ui.assets import ordered_refs, required_refs
from dagmaster.web.ui.pages import Shown

router = APIRouter(prefix="/ui", include_in_schema=False)

MOST: Final = 200


@router.get("/review", dependencies=[ASSET_VIEWERS])
async def show_review_queue(page: Shown, conn: Conn) -> HTMLResponse:
    """Two queries, so that versions still being processed do not hide those that are ready."""
    own = platform_of(page.caller)
    names = required_refs(await list_platforms(conn))
    ready = await list_review_queue(conn, platform_id=own, is_reviewable=True, limit=MOST)
    waiting = await list_review_queue(conn, platform_id=own, limit=MOST)
    return page.render(
        "review.html",
        {
            "ready": [review_line(row, names) for row in ready],
            "unready": [
                review_line(row, names) for row in waiting if row["processing_status"] != ProcessingStatus.COMPLETED
            ],
            "most": MOST,
        },
    )


def review_line(row: ReviewRow, names: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    refs = ordered_refs(row["platform_refs"], names.get(row["platform_id"], ()))
    return {"row": row, "refs": refs, "error": redact(row["processing_error"])}
