"""The page of a node: attempts, parameters, output and the live log."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from fastapi import APIRouter, Response

from dagmaster.ids import NodeId, TaskId
from dagmaster.model.outcome import ENDED, NO_CHILDREN, Outcome, end_of, outcome_of
from dagmaster.model.redact import redact
from dagmaster.model.shapes import shapes_of
from dagmaster.model.states import NODE_TERMINAL, JobStatus, NodeStatus
from dagmaster.store import attempts as attempt_store
from dagmaster.store import node_counts
from dagmaster.store.attempts import attempts_of_node, list_checkpoints
from dagmaster.store.connect import Connection
from dagmaster.store.node_counts import children_of_rows
from dagmaster.store.nodes import get_node
from dagmaster.web.access import READERS_OF_OWN
from dagmaster.web.services import Conn, Services
from dagmaster.web.ui.filters import value_of
from dagmaster.web.ui.gantt import attempt_number
from dagmaster.web.ui.job_nodes import Definition, definition_of, kind_of, waits_for
from dagmaster.web.ui.pages import Shown, ShownJob, mark_of, unchanged
from dagmaster.web.ui.waits import Waiting, is_quickly_explained, waiting_for, why
from dagmaster.web.views import node_seconds, seconds_between

router = APIRouter(prefix="/ui", include_in_schema=False)

Row = Mapping[str, Any]

MAX_CHECKPOINTS: Final = 50
COPIED: Final = ("node_id", "status", "parent_node_id", "fan_out_index", "retry_count", "max_retries", "started_at")
REPORTED: Final = ("cpu_seconds", "error_type", "progress_percent", "progress_message")


@router.get("/jobs/{job_id}/nodes/{node_id}", dependencies=[READERS_OF_OWN])
async def show_node(job: ShownJob, node_id: NodeId, page: Shown, conn: Conn) -> Response:
    mark = await mark_of(conn, job)
    if (answer := unchanged(page, mark)) is not None:
        return answer
    row = await get_node(conn, job["job_id"], node_id)
    definition = await definition_of(conn, job)
    counts = await node_counts.count_children(conn, job["job_id"], node_id)
    node = node_head(row, definition, counts)
    is_job_failed = job["status"] == JobStatus.FAILED
    attempts = await _attempts(conn, page.services, job, row)
    is_open = row["status"] not in NODE_TERMINAL
    is_explained = is_open and await is_quickly_explained(conn, job["job_id"])
    params = await asyncio.to_thread(value_of, row["input_params"])
    output = await asyncio.to_thread(value_of, row["output"])
    checkpoints = await list_checkpoints(conn, job["job_id"], node_id, limit=MAX_CHECKPOINTS)
    return page.render(
        "node.html",
        {
            "job_id": str(job["job_id"]),
            "job_status": job["status"],
            "workflow_id": job["workflow_id"],
            "node": node,
            "can_retry": node["not_before"] is not None or (node["outcome"] == Outcome.FAILED and is_job_failed),
            "attempts": attempts,
            "log": _log(job, node, attempts),
            "mark": mark,
            "why": await why(conn, page, job["job_id"], node_id) if is_explained else None,
            "is_explained_later": is_open and not is_explained,
            "waiting": await waiting_for(conn, page, job["job_id"], definition, node_id) if is_open else Waiting(),
            "params": params,
            "output": output,
            "shapes": shapes_of({"params": params.value, "output": output.value}),
            "checkpoints": [_checkpoint(row) for row in checkpoints],
        },
    )


def node_head(row: Row, definition: Definition, counts: Sequence[Row] = ()) -> Row:
    added = row["definition"] or {}
    own = {"is_added": bool(added), "type": added.get("type"), "handler": added.get("handler")}
    type, handler = kind_of({**row, **own}, definition)
    node = added or definition.get(row["parent_node_id"] or row["node_id"], {})
    task = added or node.get("task") or node  # The `task` of an added node is its number.
    children = children_of_rows([{**count, "may_fail": bool(node.get("allow_failure"))} for count in counts])
    outcome = outcome_of(row["status"], children, row["ended_by"])
    return {
        **{name: row[name] for name in COPIED},
        "type": type,
        "handler": handler,
        "queue": row["queue"] or task.get("queue"),
        "timeout_seconds": task.get("timeout_seconds"),
        "description": redact(node.get("description") or ""),
        "not_before": row["not_before"] if row["status"] == NodeStatus.READY else None,
        "completed_at": end_of(row["completed_at"], children),
        "queued": seconds_between(row["dispatched_at"], row["started_at"] or row["completed_at"]),
        "ran": node_seconds(row, children),
        "error": redact(row["last_error"]),
        "children": children,
        "outcome": outcome,
        "is_over": outcome in ENDED,
        "has_log": type == "task",
        "waits_for": waits_for(row, type, node.get("signal")),
    }


async def _attempts(conn: Connection, services: Services, job: Row, node: Row) -> list[Row]:
    """From the reports; the newest from the node itself, whose report may still be missing."""
    results = {row["task_id"]: row for row in await attempts_of_node(conn, job["job_id"], node["node_id"])}
    times = {}
    if node["retry_count"]:
        times = {row["task_id"]: row for row in await attempt_store.attempt_times(conn, job, [node["node_id"]])}
    if node["task_id"]:
        own = {"ended_at": node["completed_at"], **node}
        times[node["task_id"]] = {name: own[name] for name in ("dispatched_at", "started_at", "ended_at")}
    running = await attempt_store.worker_of(conn, node["task_id"]) if node["task_id"] else None
    ids = sorted({*results, *times}, key=attempt_number)
    sizes = await asyncio.gather(*map(services.log_bytes, ids))
    return [
        _attempt(task_id, results.get(task_id), times.get(task_id), node, size, running)
        for task_id, size in zip(ids, sizes, strict=True)
    ]


def _attempt(
    task_id: TaskId, result: Row | None, times: Row | None, node: Row, log_bytes: int | None, worker: str | None
) -> Row:
    """`queued` and `ran` are seconds. `log_bytes` is None without a log that the server can read."""
    report = redact(dict(result)) if result else {}
    is_newest = task_id == node["task_id"]
    started = times["started_at"] if times else None
    ended = times["ended_at"] if times else None
    ran = seconds_between(started, ended) if started and (ended or is_newest) else None
    if (measured := report.get("execution_duration_ms")) is not None:  # Times in the timeline are those of batches.
        ran = measured / 1000
        started = report["reported_at"] - timedelta(milliseconds=measured)
    own_status = outcome_of(node["status"], NO_CHILDREN, node["ended_by"])
    status = own_status if is_newest else report.get("status") or "failed"
    return {
        "number": attempt_number(task_id),
        "status": status,
        "is_over": status in ENDED,
        "worker_id": report.get("worker_id") or (worker if is_newest else None),
        "started_at": started,
        "queued": seconds_between(times["dispatched_at"], started or ended) if times else None,
        "ran": ran,
        "memory_bytes": report.get("peak_memory_bytes"),
        **{name: report.get(name) for name in REPORTED},
        "error": report.get("error_message") or (redact(node["error_message"]) if is_newest else None),
        "log_bytes": log_bytes,
    }


def _log(job: Row, node: Row, attempts: Sequence[Row]) -> Row:
    """Data for the script that shows the log; refreshed with the page."""
    return {
        "url": f"/api/v1/jobs/{job['job_id']}/nodes/{node['node_id']}/logs",
        "attempts": [
            {"number": row["number"], "status": row["status"], "is_over": row["is_over"], "bytes": row["log_bytes"]}
            for row in attempts
        ],
    }


def _checkpoint(row: Row) -> Row:
    index, total = row["phase_index"], row["phase_total"]
    return {
        **row,
        "phase": row["phase_name"],
        "position": f"{index + 1} of {total}" if index is not None and total else "",
        "message": redact(row["progress_message"]),
        "state": value_of(row["state_data"]),
    }
