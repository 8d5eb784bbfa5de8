"""The panel beside the graph of a job: the summary of a node, or the items folded into it."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

import orjson
from fastapi import APIRouter, Query, Response
from fastapi.responses import HTMLResponse

from dagmaster.ids import NodeId
from dagmaster.model.added_nodes import OUTSIDE
from dagmaster.model.outcome import outcome_of
from dagmaster.model.redact import redact, redact_text
from dagmaster.model.states import ENDED_WITH_JOB, NODE_TERMINAL, JobStatus, NodeStatus
from dagmaster.model.workflow import Node
from dagmaster.store import attempts as attempt_store
from dagmaster.store import node_counts
from dagmaster.store import nodes as node_store
from dagmaster.store.node_counts import children_of_rows
from dagmaster.tasklogs import LogUnavailable
from dagmaster.tasklogs.reader import LogSelection, NodeLog, NodeState
from dagmaster.web.access import READERS_OF_OWN, Job
from dagmaster.web.graph_view import draw_columns, read_graph, task_of
from dagmaster.web.services import Conn, Services, ServicesDep
from dagmaster.web.ui.job_nodes import waits_for
from dagmaster.web.ui.pages import Shown, ShownJob
from dagmaster.web.ui.waits import is_quickly_explained, may_decide, why
from dagmaster.web.views import node_seconds, seconds_between

router = APIRouter(prefix="/ui/jobs/{job_id}", include_in_schema=False)

GRID_SIZE: Final = 200
LOG_LINES: Final = 12
MAX_LOG_BYTES: Final = 8 * 1024
# In the order in which people look for them.
ITEM_ORDER: Final = ("failed", "cancelled", "running", "dispatched", "ready", "pending", "completed", "skipped")

Row = Mapping[str, Any]


@router.get("/graph", dependencies=[READERS_OF_OWN])
async def show_graph(services: ServicesDep, conn: Conn, job: Job) -> Response:
    """For the page of the job; programs use /api/v1/jobs/ID/graph."""
    packed = draw_columns(await read_graph(conn, services, job))
    return Response(orjson.dumps(packed), media_type="application/json")


@router.get("/nodes/{node_id}/panel", dependencies=[READERS_OF_OWN])
async def show_panel(page: Shown, conn: Conn, job: ShownJob, node_id: NodeId) -> HTMLResponse:
    graph = await page.services.pinned.find(conn, job["workflow_hash"])
    nodes = graph.workflow.nodes if graph is not None else {}
    if node_id == OUTSIDE and node_id not in nodes:
        return await show_items(page, conn, job, node_id)
    row = await node_store.get_node(conn, job["job_id"], node_id)
    attempts = await attempt_store.attempts_of_node(conn, job["job_id"], node_id)
    folded = [row for row in await node_counts.count_folded(conn, job["job_id"]) if row["parent_node_id"] == node_id]
    panel = _panel(row, attempts, nodes, folded)
    is_explained = row["status"] not in NODE_TERMINAL and await is_quickly_explained(conn, job["job_id"])
    return page.render(
        "panel.html",
        {
            "node": panel,
            "can_retry": panel["not_before"] is not None or (panel["is_failed"] and job["status"] == JobStatus.FAILED),
            "may_decide": panel["is_decided_by_people"] and may_decide(page, panel["params"].get("approvers") or ()),
            "why": await why(conn, page, job["job_id"], node_id) if is_explained else None,
            "is_explained_later": row["status"] not in NODE_TERMINAL and not is_explained,
            "log": await _last_lines(page.services, row) if panel["has_log"] else "",
        },
    )


def _panel(row: Row, attempts: Sequence[Row], nodes: Mapping[str, Node], folded: Sequence[Row]) -> Row:
    """Summary of a node. `attempt` counts from 1; `worker` ran the newest attempt."""
    node = nodes.get(row["parent_node_id"] or row["node_id"])
    task = task_of(node) if node else None
    added = row["definition"] or {}
    node_type = "task" if row["parent_node_id"] or not node else node.type
    is_waiting = row["status"] == NodeStatus.RUNNING
    children = children_of_rows([{**count, "may_fail": getattr(node, "allow_failure", False)} for count in folded])
    params = redact(row["input_params"]) or {}
    is_asked = node_type == "approval" and is_waiting
    signal = getattr(node, "signal", None)
    return {
        **{name: row[name] for name in ("job_id", "node_id", "dispatched_at", "started_at", "completed_at")},
        "type": node_type.replace("_", "-"),
        "description": node.description if node else "",
        "handler": added.get("handler") or (task.handler if task else None),
        "queue": row["queue"] or added.get("queue") or (task.queue if task else None),
        "worker": attempts[-1]["worker_id"] if attempts else None,
        "attempt": row["retry_count"] + 1,
        "max_attempts": row["max_retries"] + 1,
        "waited_seconds": seconds_between(row["dispatched_at"], row["started_at"] or row["completed_at"]),
        "run_seconds": node_seconds(row, children),
        "not_before": row["not_before"] if row["status"] == NodeStatus.READY else None,
        "error": redact(row["error_message"] or (row["last_error"] if row["status"] not in NODE_TERMINAL else None)),
        "params": params,
        "output": redact(row["output"]),
        "is_failed": row["status"] == NodeStatus.FAILED and row["ended_by"] not in ENDED_WITH_JOB,
        "is_decided_by_people": is_asked,
        "approval_message": params.get("message") if is_asked else None,
        "signal": signal if node_type == "wait" and is_waiting else None,
        "waits_for": waits_for(row, node_type, signal),
        "has_log": node_type in ("task", "fan_out") and row["task_id"] is not None,
        "outcome": outcome_of(row["status"], children, row["ended_by"]),
        "children": children,
    }


async def _last_lines(services: Services, row: Row) -> str:
    """Empty if there is no log, or if this server cannot read it."""
    node = NodeLog(services.task_logs, row["job_id"], row["node_id"])
    try:
        log = await node.find(LogSelection(tail=LOG_LINES), NodeState.of(row))
        if log is None:
            return ""
        start = max(log.start, log.size - MAX_LOG_BYTES)
        pieces = [piece async for piece in node.pieces(log.attempt, start, log.size)]
    except LogUnavailable:
        return ""
    return redact_text(b"".join(pieces).decode(errors="replace"))


@router.get("/nodes/{node_id}/items", dependencies=[READERS_OF_OWN])
async def show_items(
    page: Shown,
    conn: Conn,
    job: ShownJob,
    node_id: NodeId,
    status: str = "",
    offset: Annotated[int, Query(ge=0, le=10_000_000)] = 0,
) -> HTMLResponse:
    counts = _counts_of(await node_counts.count_folded(conn, job["job_id"]), node_id)
    if not counts and node_id != OUTSIDE:
        await node_store.get_node_head(conn, job["job_id"], node_id)  # Raises NotFound.
    rows = await node_store.view_folded(
        conn, job["job_id"], node_id, status=status or None, limit=GRID_SIZE, offset=offset
    )
    return page.render(
        "grid.html",
        {
            "job_id": str(job["job_id"]),
            "node_id": node_id,
            "items": [_item(node_id, row) for row in rows],
            "counts": counts,
            "total": sum(counts.values()),
            "shown_total": counts.get(status, 0) if status else sum(counts.values()),
            "status": status,
            "offset": offset,
            "size": GRID_SIZE,
        },
    )


def _counts_of(counts: Sequence[Row], node_id: NodeId) -> dict[str, int]:
    mine: dict[str, int] = {}
    for count in counts:
        if count["parent_node_id"] == node_id:
            mine[count["status"]] = mine.get(count["status"], 0) + count["nodes"]
    return {status: mine[status] for status in ITEM_ORDER if status in mine}


def _item(parent: str, row: Row) -> Row:
    index = row["fan_out_index"]
    return {
        "node_id": row["node_id"],
        "name": str(index) if index is not None else row["node_id"].removeprefix(f"{parent}."),
        "status": outcome_of(row["status"], ended_by=row["ended_by"]),
        "attempt": row["retry_count"] + 1,
        "error": redact(row["error_message"]),
        "seconds": seconds_between(row["started_at"], row["completed_at"]) if row["completed_at"] else None,
    }
