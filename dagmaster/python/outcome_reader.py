"""The outcome of an ended job, with the log of the task that failed."""

from collections.abc import Mapping
from typing import Any

from dagmaster.ids import JobId
from dagmaster.model.states import JobStatus
from dagmaster.python.outcome import JobOutcome
from dagmaster.settings import Settings
from dagmaster.store.attempts import list_logged_nodes
from dagmaster.store.connect import Connection
from dagmaster.store.jobs import get_job
from dagmaster.tasklogs.contract import LogUnavailable
from dagmaster.tasklogs.factory import open_task_logs
from dagmaster.tasklogs.reader import NodeLog

LINES = 40


async def outcome_of(conn: Connection, job_id: JobId, settings: Settings) -> JobOutcome:
    row = await get_job(conn, job_id)
    status = JobStatus(row["status"])
    log = await _failed_log(conn, row, settings) if status is JobStatus.FAILED else None
    return JobOutcome(job_id, status, row["error_message"], row["result_data"], row["input_params"], log)


async def _failed_log(conn: Connection, job: Mapping[str, Any], settings: Settings) -> str | None:
    """The last lines of the log of the failed attempt, which hold the traceback."""
    rows = (
        await list_logged_nodes(conn, job["job_id"], node_id=job["failed_node"], limit=1) if job["failed_node"] else []
    )
    node = next(iter(rows), None)
    if node is None:
        return None
    logs = open_task_logs(settings)
    try:
        log = NodeLog(logs, job["job_id"], node["node_id"])
        start, end = await log.tail(node["attempt"], LINES), await log.size(node["attempt"]) or 0
        text = b"".join([piece async for piece in log.pieces(node["attempt"], start, end)])
    except LogUnavailable:
        return None
    finally:
        await logs.close()
    return text.decode(errors="replace").rstrip() or None
