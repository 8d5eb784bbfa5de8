"""The nodes of all jobs."""

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse

from dagmaster.model.outcome import NO_CHILDREN, Children, outcome_of
from dagmaster.model.redact import redact
from dagmaster.model.states import ENDED_WITH_JOB, JobStatus, NodeStatus
from dagmaster.store.nodes import NEWEST_JOBS, STATUSES, NodeSearch, jobs_of, kinds_of_nodes, search_nodes
from dagmaster.web.access import READERS
from dagmaster.web.services import Conn
from dagmaster.web.ui.job_nodes import waits_for
from dagmaster.web.ui.jobs import PAGE_SIZE, workflow_ids
from dagmaster.web.ui.list_filters import PERIOD_NAMES, FromAddress
from dagmaster.web.ui.pages import Shown, paged
from dagmaster.web.views import node_seconds, seconds_between

router = APIRouter(prefix="/ui", include_in_schema=False)


Row = Mapping[str, Any]


def node_line(row: Row, children: Children, kind: Row) -> Row:
    """`can_retry`: the failed node of a failed job. Attempts count from 1."""
    retry_at = row["not_before"] if row["status"] == NodeStatus.READY else None
    is_failed = row["status"] == NodeStatus.FAILED and row["ended_by"] not in ENDED_WITH_JOB
    waits = row["status"] == NodeStatus.DISPATCHED
    queued_until = row["started_at"] or (None if waits else row["completed_at"])
    return {
        **row,
        "outcome": outcome_of(row["status"], children, row["ended_by"]),
        "error": redact(row["error_message"]),
        "attempt": row["retry_count"] + 1,
        # Nodes without a worker start when they are dispatched.
        "queued_seconds": seconds_between(row["dispatched_at"], queued_until) or None,
        "run_seconds": node_seconds(row, children),
        "changed_at": row["completed_at"] or row["started_at"] or row["dispatched_at"] or row["created_at"],
        "retry_at": retry_at,
        "type": kind.get("type"),
        "waits_for": waits_for(row, kind.get("type"), kind.get("signal")),
        "can_retry": is_failed and row["job_status"] == JobStatus.FAILED,
        "children": children,
    }


@router.get("/nodes", dependencies=[READERS])
async def show_nodes(
    page: Shown, conn: Conn, query: FromAddress, offset: Annotated[int, Query(ge=0, le=100_000)] = 0
) -> HTMLResponse:
    statuses = query.statuses(list(STATUSES))
    filter = NodeSearch(
        statuses=statuses,
        workflow_id=query.workflow or None,
        since=query.created_since,
        text=query.text or None,
    )
    rows = await search_nodes(conn, filter, limit=PAGE_SIZE + 1, offset=offset)
    known = await page.services.node_counts.of(conn, jobs_of(rows))
    kinds = await kinds_of_nodes(conn, [row for row in rows if row["status"] == NodeStatus.RUNNING])
    return page.render(
        "nodes.html",
        {
            "nodes": [
                node_line(
                    row,
                    known[row["job_id"]].children.get(row["node_id"], NO_CHILDREN),
                    kinds.get((row["job_id"], row["node_id"]), {}),
                )
                for row in rows[:PAGE_SIZE]
            ],
            **paged(rows, PAGE_SIZE, offset),
            "query": query,
            "statuses": statuses,
            "periods": {"Jobs created": PERIOD_NAMES},
            "all_statuses": list(STATUSES),
            "workflow_ids": workflow_ids(page),
            "most_jobs": NEWEST_JOBS,
            "is_filtered": bool(statuses or query.workflow or query.text or query.period),
        },
    )
