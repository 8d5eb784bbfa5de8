"""What people ask of a job: cancel, pause, go on, try again. Its owner is told, and does it. And what of a worker."""

import asyncio
from collections.abc import Callable
from typing import Any

from dagmaster.engine.messages import Cancel, ManualRetry, Pause, Resume
from dagmaster.errors import Conflict, JobEnded, Unavailable, UnknownWorker
from dagmaster.ids import JobId, NodeId, WorkerId
from dagmaster.model.states import JOB_TERMINAL, JobStatus, NodeStatus
from dagmaster.store.audit import note_command
from dagmaster.store.connect import Connection
from dagmaster.store.instances import want_worker
from dagmaster.store.jobs import get_job_head
from dagmaster.store.mail_codec import encode, mail_values
from dagmaster.store.mailbox import add_mail
from dagmaster.store.nodes import find_node_head, get_node_head
from dagmaster.store.notifications import MAIL
from dagmaster.store.statements import fetch, run
from dagmaster.store.workers import find_worker

POLL_SECONDS = 0.03
# By command.
WANTED = {"drain": "drain", "stop": "stop", "resume": "run"}

Row = dict[str, Any]


async def request_cancel(conn: Connection, job_id: JobId, *, actor: str | None, reason: str | None) -> Row:
    """The job as it was; raises JobEnded."""
    job = await _live_job(conn, job_id, "cancelled")
    await _tell(conn, job_id, Cancel(actor, reason))
    return job


async def request_pause(conn: Connection, job_id: JobId, *, actor: str | None, reason: str | None) -> Row:
    job = await _live_job(conn, job_id, "paused")
    if job["paused_at"] is not None:
        raise Conflict(f"job {job_id} is paused already, by {job['paused_by'] or 'somebody'}")
    await _tell(conn, job_id, Pause(actor, reason))
    return job


async def request_resume(conn: Connection, job_id: JobId, *, actor: str | None) -> Row:
    job = await _live_job(conn, job_id, "resumed")
    if job["paused_at"] is None:
        raise Conflict(f"job {job_id} is not paused")
    await _tell(conn, job_id, Resume(actor))
    return job


async def request_retry(
    conn: Connection, job_id: JobId, node_id: NodeId | None, *, actor: str | None, threshold_seconds: float
) -> Row:
    """A failed job is reopened; in a running one a node's back-off is cut short. None stands for all that failed."""
    job = await get_job_head(conn, job_id)
    if node_id is not None:
        await _check_node(conn, job, node_id)
    if job["status"] == JobStatus.FAILED:
        await _reopen(conn, job_id, node_id, actor, threshold_seconds)
    elif job["status"] in JOB_TERMINAL:
        raise JobEnded(f"job {job_id} is {job['status']}: only a failed job can be tried again")
    elif node_id is None:
        raise Conflict(f"job {job_id} is {job['status']}: nothing in it has failed for good")
    elif await _status_of(conn, job_id, node_id) == NodeStatus.FAILED:
        raise Conflict(f"node {node_id!r} has failed for good, and job {job_id} goes on without it")
    else:
        await _tell(conn, job_id, ManualRetry(node_id, actor))
    return job


async def _check_node(conn: Connection, job: Row, node_id: NodeId) -> None:
    job_id = job["job_id"]
    node = await get_node_head(conn, job_id, node_id)
    waits = node["status"] == NodeStatus.READY and node["not_before"] is not None
    if node["status"] != NodeStatus.FAILED and not waits:
        raise Conflict(f"node {node_id!r} is {node['status']}: only one that has failed can be tried again")


async def _status_of(conn: Connection, job_id: JobId, node_id: NodeId) -> str | None:
    node = await find_node_head(conn, job_id, node_id)
    return node["status"] if node is not None else None


async def _reopen(
    conn: Connection, job_id: JobId, node_id: NodeId | None, actor: str | None, threshold_seconds: float
) -> None:
    mail = mail_values(encode(job_id, ManualRetry(node_id, actor)))
    values = {**mail, "threshold_seconds": threshold_seconds}
    if await (await run(conn, "reopen_job", values)).fetchone() is not None:
        return
    job = await get_job_head(conn, job_id)
    if "removal" in job["metadata"]:
        raise Conflict(f"job {job_id} is old and is just being removed")
    if job["owner_id"] is not None:
        raise Conflict(f"job {job_id} is being tried again already")
    raise Unavailable(
        "no orchestrator is running that could try the job again; "
        "start one, for example with `dagmaster dev`, and try again"
    )


async def _live_job(conn: Connection, job_id: JobId, wish: str) -> Row:
    job = await get_job_head(conn, job_id)
    if job["status"] in JOB_TERMINAL:
        raise JobEnded(f"job {job_id} is {job['status']} and cannot be {wish}")
    return job


async def _tell(conn: Connection, job_id: JobId, message: Cancel | Pause | Resume | ManualRetry) -> None:
    await add_mail(conn, [encode(job_id, message)])
    await conn.execute(f"NOTIFY {MAIL}")


async def until(conn: Connection, job_id: JobId, holds: Callable[[Row], bool], *, seconds: float) -> Row:
    """The job when it is as asked for, or as it is when that took too long."""
    deadline = asyncio.get_running_loop().time() + seconds
    while True:
        job = await get_job_head(conn, job_id)
        if holds(job) or asyncio.get_running_loop().time() > deadline:
            return job
        await asyncio.sleep(POLL_SECONDS)


async def steer_worker(conn: Connection, worker_id: WorkerId, command: str, *, actor: str | None) -> str:
    """What is wanted of it now; it hears of it within seconds, and the audit has it. Raises UnknownWorker, and
    Conflict for one that is gone.
    """
    wanted = WANTED[command]
    async with conn.transaction():  # What is done is in the audit, and nothing else is.
        if not await want_worker(conn, worker_id, wanted):
            if await find_worker(conn, worker_id) is None:
                raise UnknownWorker(f"there is no worker {worker_id[:40]!r}; `dagmaster workers` lists them")
            raise Conflict(f"worker {worker_id} has stopped or was lost")
        await note_command(conn, {"command": f"workers.{command}", "actor": actor, "worker_id": worker_id})
    return wanted


async def call_off_orphans(conn: Connection, *, age_seconds: float) -> int:
    """Cancel jobs that nobody waits for any more; how many."""
    return len(await fetch(conn, "call_off_orphans", {"age_seconds": age_seconds}))
