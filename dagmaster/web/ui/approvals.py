"""Pending approvals and the latest decisions."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from dagmaster.ids import NodeId
from dagmaster.model.redact import redact
from dagmaster.store.signals import decided_approvals, waiting_approvals
from dagmaster.web.access import READERS
from dagmaster.web.services import Conn
from dagmaster.web.ui.pages import Page, Shown

router = APIRouter(prefix="/ui", include_in_schema=False)

MOST_PENDING: Final = 200
MOST_DECIDED: Final = 30


@dataclass(frozen=True, slots=True)
class PendingApproval:
    """`approvers` are names of keys; without them any operator may decide."""

    job_id: str
    workflow_id: str
    node_id: NodeId
    message: str
    submitted_by: str
    approvers: tuple[str, ...]
    since: datetime
    until: datetime | None
    is_mine: bool


@dataclass(frozen=True, slots=True)
class Decision:
    job_id: str
    workflow_id: str
    node_id: NodeId
    message: str
    is_approved: bool
    decided_by: str | None
    comment: str | None
    decided_at: datetime


@router.get("/approvals", dependencies=[READERS])
async def show_approvals(page: Shown, conn: Conn) -> HTMLResponse:
    pending = [_pending(row, page) for row in await waiting_approvals(conn, limit=MOST_PENDING)]
    decisions = [_decision(row) for row in await decided_approvals(conn, limit=MOST_DECIDED)]
    return page.render("approvals.html", {"pending": pending, "decisions": decisions, "most": MOST_PENDING})


def _pending(row: Mapping[str, Any], page: Page) -> PendingApproval:
    approvers = tuple(row["approvers"])
    return PendingApproval(
        job_id=str(row["job_id"]),
        workflow_id=row["workflow_id"],
        node_id=row["node_id"],
        message=redact(row["message"] or ""),
        submitted_by=row["submitted_by"],
        approvers=approvers,
        since=row["started_at"],
        until=row["until"],
        is_mine=page.may_operate and (not approvers or page.caller.name in approvers),
    )


def _decision(row: Mapping[str, Any]) -> Decision:
    return Decision(
        job_id=str(row["job_id"]),
        workflow_id=row["workflow_id"],
        node_id=row["node_id"],
        message=redact(row["message"] or ""),
        is_approved=bool(row["is_approved"]),
        decided_by=row["decided_by"],
        comment=redact(row["comment"]),
        decided_at=row["decided_at"],
    )
