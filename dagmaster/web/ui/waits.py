"""Why a job waits, and the possible actions: decide, or send a signal."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from dagmaster.errors import NotFound
from dagmaster.explain.facts import Kind
from dagmaster.ids import JobId, NodeId
from dagmaster.model.redact import redact, redact_text
from dagmaster.model.states import JOB_TERMINAL
from dagmaster.store.connect import Connection
from dagmaster.store.node_counts import has_more_nodes
from dagmaster.store.nodes import waiting_nodes
from dagmaster.web.access import READERS_OF_OWN
from dagmaster.web.services import Conn
from dagmaster.web.ui.pages import Page, Shown, ShownJob

router = APIRouter(prefix="/ui/jobs/{job_id}", include_in_schema=False)

Row = Mapping[str, Any]

MOVING: Final = frozenset({Kind.RUNNING, Kind.EXPANDING, Kind.ABOUT_TO_RUN, Kind.GIVING_RESULT, Kind.ENDED})
# Explaining a node reads all nodes of its job; for a larger job, the page loads it later.
QUICKLY_EXPLAINED: Final = 300
HELP_NEEDED: Final = frozenset({Kind.NO_OWNER, Kind.PAUSED, Kind.WAITING_FOR_APPROVAL, Kind.WAITING_FOR_SIGNAL})


@dataclass(frozen=True, slots=True)
class Why:
    """`tone` is the status that gives the colour: `running` for progress, `paused` if a person must act."""

    sentence: str
    tone: str
    icon: str
    also: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Waiting:
    approvals: Sequence[Row] = ()
    signals: Sequence[Row] = ()


@router.get("/why", dependencies=[READERS_OF_OWN])
async def show_why(job: ShownJob, page: Shown, conn: Conn) -> HTMLResponse:
    """A part of the page of a large job, loaded later. Empty for an ended job, whose page shows the cause."""
    is_over = job["status"] in JOB_TERMINAL
    return page.render("why.html", {"why": None if is_over else await why(conn, page, job["job_id"])})


@router.get("/nodes/{node_id}/why", dependencies=[READERS_OF_OWN])
async def show_why_node(job: ShownJob, node_id: NodeId, page: Shown, conn: Conn) -> HTMLResponse:
    return page.render("why.html", {"why": await why(conn, page, job["job_id"], node_id)})


async def is_quickly_explained(conn: Connection, job_id: JobId) -> bool:
    return not await has_more_nodes(conn, job_id, QUICKLY_EXPLAINED)


async def why(conn: Connection, page: Page, job_id: JobId, node_id: NodeId | None = None) -> Why | None:
    try:
        explanation = await page.services.explain(conn, job_id, node_id)
    except NotFound:  # Its definition is gone, or it is.
        return None
    tone = "paused" if explanation.kind in HELP_NEEDED else "running" if explanation.kind in MOVING else "waiting"
    icon = {"paused": "alert-circle", "running": "activity", "waiting": "clock"}[tone]
    also = [fact.get("sentence") or f"{fact['text']}." for fact in explanation.data.get("also", ())]
    return Why(redact_text(explanation.sentence), tone, icon, tuple(redact_text(sentence) for sentence in also[:5]))


async def waiting_for(
    conn: Connection, page: Page, job_id: JobId, nodes: Mapping[str, Row], only: str | None = None
) -> Waiting:
    """The waits of the nodes of the definition, or of one of them."""
    names = [name for name, node in nodes.items() if only in (None, name) and _asks(node)]
    rows = await waiting_nodes(conn, job_id, names)
    return Waiting(
        [_approval(row, page) for row in rows if nodes[row["node_id"]]["type"] == "approval"],
        [
            {"node_id": row["node_id"], "name": str(nodes[row["node_id"]]["signal"]), "since": row["started_at"]}
            for row in rows
            if nodes[row["node_id"]]["type"] == "wait"
        ],
    )


def _asks(node: Row) -> bool:
    return node["type"] == "approval" or bool(node["type"] == "wait" and node.get("signal"))


def _approval(row: Row, page: Page) -> Row:
    params = row["input_params"] or {}
    approvers = params.get("approvers") or ()
    return {
        "node_id": row["node_id"],
        "message": redact(str(params.get("message") or "")),
        "approvers": approvers,
        "since": row["started_at"],
        "may_decide": may_decide(page, approvers),
    }


def may_decide(page: Page, approvers: Collection[str]) -> bool:
    return page.may_operate and (not approvers or page.caller.name in approvers)
