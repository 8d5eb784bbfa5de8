"""Pending approvals and the latest decisions."""

from typing import Final

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from dagmaster.model.redact import redact
from dagmaster.store.signals import decided_approvals, waiting_approvals
from dagmaster.web.access import READERS
from dagmaster.web.services import Conn
from dagmaster.web.ui.pages import Shown
from dagmaster.web.ui.waits import may_decide

router = APIRouter(prefix="/ui", include_in_schema=False)

MOST_PENDING: Final = 200
MOST_DECIDED: Final = 30


@router.get("/approvals", dependencies=[READERS])
async def show_approvals(page: Shown, conn: Conn) -> HTMLResponse:
    pending = [
        {**redact(row), "since": row["started_at"], "is_mine": may_decide(page, row["approvers"])}
        for row in await waiting_approvals(conn, limit=MOST_PENDING)
    ]
    decisions = redact(await decided_approvals(conn, limit=MOST_DECIDED))
    return page.render("approvals.html", {"pending": pending, "decisions": decisions, "most": MOST_PENDING})
