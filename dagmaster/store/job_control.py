"""Commands to jobs, sent to their owners: cancel, pause, resume, retry. Also commands to workers."""

import asyncio
from collections.abc import Callable

import psycopg

from dagmaster.engine.messages import Cancel, ManualRetry, Pause, Resume
from dagmaster.errors import Conflict, Invalid, JobEnded, Unavailable, UnknownWorker
from dagmaster.ids import JobId, NodeId, WorkerId
from dagmaster.model.states import JOB_TERMINAL, JobStatus, NodeStatus
from dagmaster.store.audit import note_command
from dagmaster.store.connect import Connection, Row
from dagmaster.store.instances import set_desired_state
from dagmaster.store.jobs import get_job_head
from dagmaster.store.mail_codec import Mailed, encode, mail_values
from dagmaster.store.mailbox import add_mail
from dagmaster.store.nodes import NodeHead, get_node_head
from dagmaster.store.notifications import MAIL
from dagmaster.store.queues import LOCAL_QUEUE
from dagmaster.store.statements import fetch
from dagmaster.store.workers import find_worker

POLL_SECONDS = 0.03
# The desired state by command.
DESIRED_STATES = {"drain": "drain", "stop": "stop", "resume": "run"}


async def request_cancel(conn: Connection, job_id: JobId, *, actor: str | None, reason: str | None) -> Row:
    """Returns the job before the change; raises JobEnded."""
    job = await live_job(conn, job_id, "cannot be cancelled")
    await send(conn, job_id, Cancel(actor, reason))
    return job


async def request_pause(conn: Connection, job_id: JobId, *, actor: str | None, reason: str | None) -> Row:
    job = await live_job(conn, job_id, "cannot be paused")
    if job["paused_at"] is not None:
        raise Conflict(f"job {job_id} is paused already, by {job['paused_by'] or 'somebody'}")
    await send(conn, job_id, Pause(actor, reason))
    return job


async def request_resume(conn: Connection, job_id: JobId, *, actor: str | None) -> Row:
    job = await live_job(conn, job_id, "cannot be resumed")
    if job["paused_at"] is None:
        raise Conflict(f"job {job_id} is not paused")
    await send(conn, job_id, Resume(actor))
    return job


async def request_retry(
    conn: Connection,
    job_id: JobId,
    node_id: NodeId | None,
    only: frozenset[str] | None = None,
    *,
    actor: str | None,
    threshold_seconds: float,
) -> Row:
    """Reopen a failed job, or end a node's back-off in a running one. Without `node_id`, all failed nodes are retried,
    limited to `only`.
    """
    job = await get_job_head(conn, job_id)
    message = ManualRetry(node_id, actor, only)
    node = await _retryable_node(conn, job_id, node_id) if node_id is not None else None
    if job["status"] == JobStatus.FAILED:
        await _reopen(conn, job_id, message, threshold_seconds)
    elif job["status"] in JOB_TERMINAL:
        raise JobEnded(f"job {job_id} is {job['status']}: only a failed job can be retried")
    elif node is None and only is None:
        raise Conflict(f"job {job_id} is {job['status']}: none of its nodes has failed permanently")
    elif node is not None and node["status"] == NodeStatus.FAILED:
        raise Conflict(f"node {node_id!r} has failed permanently, and job {job_id} continues without it")
    else:
        await send(conn, job_id, message)
    return job


async def _retryable_node(conn: Connection, job_id: JobId, node_id: NodeId) -> NodeHead:
    node = await get_node_head(conn, job_id, node_id)
    waits = node["status"] == NodeStatus.READY and node["not_before"] is not None
    if node["status"] != NodeStatus.FAILED and not waits:
        raise Conflict(f"node {node_id!r} is {node['status']}: only a failed node can be retried")
    return node


async def _reopen(conn: Connection, job_id: JobId, message: ManualRetry, threshold_seconds: float) -> None:
    values = {**mail_values(encode(job_id, message)), "threshold_seconds": threshold_seconds}
    if await fetch(conn, "reopen_job", values):
        return
    job = await get_job_head(conn, job_id)
    if "removal" in job["metadata"]:
        raise Conflict(f"job {job_id} is being removed by retention")
    if job["owner_id"] is not None:
        raise Conflict(f"job {job_id} is already being retried")
    raise Unavailable(
        "no orchestrator is running to retry the job; start one, for example with `dagmaster dev`, and try again"
    )


async def live_job(conn: Connection, job_id: JobId, refusal: str) -> Row:
    """Raises UnknownJob, or JobEnded with the refusal."""
    job = await get_job_head(conn, job_id)
    if job["status"] in JOB_TERMINAL:
        raise JobEnded(f"job {job_id} is {job['status']} and {refusal}")
    return job


async def send(conn: Connection, job_id: JobId, message: Mailed) -> None:
    """Mail the message to the job's owner, and wake it."""
    try:
        await add_mail(conn, [encode(job_id, message)])
    except (TypeError, psycopg.DataError) as error:
        raise Invalid("the message cannot be stored as JSON; it must not contain a NUL character (\\u0000)") from error
    await conn.execute(f"NOTIFY {MAIL}")


async def until(conn: Connection, job_id: JobId, holds: Callable[[Row], bool], *, seconds: float) -> Row:
    """Poll until the condition holds, for at most `seconds`, and return the job."""
    deadline = asyncio.get_running_loop().time() + seconds
    while True:
        job = await get_job_head(conn, job_id)
        if holds(job) or asyncio.get_running_loop().time() > deadline:
            return job
        await asyncio.sleep(POLL_SECONDS)


async def control_worker(
    conn: Connection, worker_id: WorkerId, command: str, *, actor: str | None, source_app: str = "api"
) -> str:
    """Set the desired state, which the worker sees within seconds, and record it in the audit log. Raises
    UnknownWorker, and Conflict for a worker that has left.
    """
    wanted = DESIRED_STATES[command]
    async with conn.transaction():  # The audit log records exactly the applied changes.
        if not await set_desired_state(conn, worker_id, wanted):
            if await find_worker(conn, worker_id) is None:
                raise UnknownWorker(f"there is no worker {worker_id[:40]!r}; `dagmaster workers` lists them")
            raise Conflict(f"worker {worker_id} has stopped or was lost")
        note = {"command": f"workers.{command}", "actor": actor, "worker_id": worker_id}
        await note_command(conn, note, source_app=source_app)
    return wanted


async def cancel_orphans(conn: Connection, *, age_seconds: float) -> int:
    """Cancel child jobs whose parent no longer waits for them, and return their number."""
    return len(await fetch(conn, "cancel_orphans", {"age_seconds": age_seconds}))


async def cancel_abandoned(conn: Connection, *, age_seconds: float) -> int:
    """Cancel the jobs of programs that have ended before their jobs, and return their number.

    A suspended program has `age_seconds` to consume its queue again.
    """
    return len(await fetch(conn, "cancel_abandoned", {"local_queue": LOCAL_QUEUE, "age_seconds": age_seconds}))
