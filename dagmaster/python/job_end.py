"""Wait for the end of a job, and read its outcome with the log of the task that failed."""

import asyncio
import logging
from collections.abc import Mapping
from math import inf
from time import monotonic
from typing import Any

from dagmaster.errors import Conflict
from dagmaster.fleet import Fleet
from dagmaster.handlers import registry
from dagmaster.ids import JobId
from dagmaster.model.problems import did_you_mean
from dagmaster.model.states import JOB_TERMINAL, JobStatus
from dagmaster.python.records import JobOutcome
from dagmaster.settings import Settings
from dagmaster.store.attempts import list_logged_nodes
from dagmaster.store.connect import Connection
from dagmaster.store.jobs import get_job, job_status
from dagmaster.store.queues import unserved_tasks
from dagmaster.tasklogs.contract import LogUnavailable
from dagmaster.tasklogs.factory import open_task_logs
from dagmaster.tasklogs.reader import NodeLog

LINES = 40
FIRST_POLL_SECONDS = 0.002
POLL_SECONDS = 0.1
STALL_SECONDS = 2.0

log = logging.getLogger(__name__)


async def until_ended(conn: Connection, job_id: JobId, running: Fleet) -> None:
    pause, stalled_at = FIRST_POLL_SECONDS, monotonic() + STALL_SECONDS
    while (await job_status(conn, [job_id]))[0]["status"] not in JOB_TERMINAL:
        if running.ended.done():
            await running.ended
            raise Conflict(f"the fleet of this process was closed before job {job_id} ended")
        if monotonic() >= stalled_at:
            was_reported = await _warn_if_stalled(conn, job_id)
            stalled_at = inf if was_reported else monotonic() + STALL_SECONDS
        await asyncio.sleep(pause)
        pause = min(pause * 1.3, POLL_SECONDS)


async def outcome_of(conn: Connection, job_id: JobId, settings: Settings) -> JobOutcome:
    row = await get_job(conn, job_id)
    status = JobStatus(row["status"])
    log = await _failed_log(conn, row, settings) if status is JobStatus.FAILED else None
    return JobOutcome(job_id, status, row["error_message"], row["result_data"], row["input_params"], log)


async def _failed_log(conn: Connection, job: Mapping[str, Any], settings: Settings) -> str | None:
    """The last lines of the log of the failed attempt, which hold the traceback."""
    if not job["failed_node"]:
        return None
    nodes = await list_logged_nodes(conn, job["job_id"], node_id=job["failed_node"], limit=1)
    if not nodes:
        return None
    [node] = nodes
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


async def _warn_if_stalled(conn: Connection, job_id: JobId) -> bool:
    """Report why a job is stalled: added tasks may need a handler that no worker has."""
    tasks = await unserved_tasks(conn, job_id)
    for task in tasks:
        hint = did_you_mean(task["handler"], registry.spellings())
        message = "job %s waits: no worker runs handler %r from queue %r%s"
        log.warning(message, job_id, task["handler"], task["queue"], hint)
    return bool(tasks)
