"""Signals and approvals: the nodes that wait for them, and the decisions."""

import asyncio
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

from dagmaster.engine.messages import ApprovalDecision, SignalSent
from dagmaster.errors import Conflict, Forbidden, Invalid, UnknownNode
from dagmaster.ids import JobId, NodeId
from dagmaster.model.states import NodeStatus
from dagmaster.model.workflow import SIGNAL_PATTERN
from dagmaster.store.connect import Connection, Row
from dagmaster.store.job_control import POLL_SECONDS, live_job, send
from dagmaster.store.nodes import get_node_head
from dagmaster.store.statements import fetch, fetch_one

MAX_COMMENT_LENGTH: Final = 2000
DECIDED_JOBS: Final = 200


async def waiting_approvals(conn: Connection, *, limit: int) -> list[Row]:
    return await fetch(conn, "waiting_approvals", {"limit": limit})


async def decided_approvals(conn: Connection, *, limit: int) -> list[Row]:
    """The newest first."""
    return await fetch(conn, "decided_approvals", {"jobs": DECIDED_JOBS, "limit": limit})


async def external_waits(conn: Connection, job_ids: Sequence[JobId]) -> dict[JobId, Row]:
    """The jobs that wait only for a decision or a signal, with `waits_for`, `node_id`, `signal`."""
    rows = await fetch(conn, "waiting_of_jobs", {"job_ids": list(job_ids)}) if job_ids else []
    return {row["job_id"]: row for row in rows}


async def has_unread_signal(conn: Connection, job_id: JobId) -> bool:
    """Whether the job's owner has not yet read a signal."""
    [row] = await fetch(conn, "has_unread_signal", {"job_id": job_id})
    return bool(row["has_unread_signal"])


async def until_decided(
    conn: Connection, job_id: JobId, node_id: NodeId, *, approved: bool, seconds: float
) -> NodeStatus:
    """Wait until the owner has processed the decision, for at most `seconds`, and return the node's status.

    Raises Conflict if another event ended the wait.
    """
    decided = NodeStatus.COMPLETED if approved else NodeStatus.FAILED
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while True:
        row = await get_node_head(conn, job_id, node_id)
        if row["status"] == decided or (row["status"] == NodeStatus.RUNNING and loop.time() > deadline):
            return NodeStatus(row["status"])
        if row["status"] != NodeStatus.RUNNING:
            raise Conflict(f"node {node_id!r} is {row['status']}: another event has ended its wait")
        await asyncio.sleep(POLL_SECONDS)


async def child_job_inputs(conn: Connection, job_id: JobId, node_id: NodeId) -> bytes:
    """The inputs of a node's child job. Needs a connection that keeps JSON as bytes."""
    row = await fetch_one(conn, "inputs_of_call", {"job_id": job_id, "node_id": node_id})
    if row is None or row["input_params"] is None:
        raise Invalid(f"the stored inputs of the child job of node {node_id!r} of job {job_id} are missing")
    inputs: bytes = row["input_params"]
    return inputs


async def send_signal(conn: Connection, job_id: JobId, name: str, *, data: Any, actor: str | None) -> Row:
    """Returns the job before the change. The job's owner matches the signal with its nodes."""
    if not re.fullmatch(SIGNAL_PATTERN, name):
        rule = "a letter, then letters, digits, '_', '-' or '.', at most 64 in all"
        raise Invalid(f"{name[:80]!r} is not a valid signal name: it must be {rule}")
    job = await live_job(conn, job_id, "takes no signals")
    await send(conn, job_id, SignalSent(name, data, datetime.now(UTC), actor))
    return job


async def request_decision(
    conn: Connection, job_id: JobId, node_id: NodeId, *, approved: bool, actor: str | None, comment: str | None
) -> Row:
    """Returns the job before the change. Raises Forbidden if the actor is not an approver."""
    if comment is not None and len(comment) > MAX_COMMENT_LENGTH:
        raise Invalid(f"the comment may have at most {MAX_COMMENT_LENGTH} characters, not {len(comment)}")
    job = await live_job(conn, job_id, "needs no decision")
    node = await fetch_one(conn, "approval_of_node", {"job_id": job_id, "node_id": node_id})
    if node is None:
        raise UnknownNode(f"job {job_id} has no node {node_id!r}")
    if node["type"] != "approval":
        raise Conflict(f"node {node_id!r} is a {node['type'] or 'task'}: only an approval can be approved or rejected")
    if node["status"] != NodeStatus.RUNNING:
        raise Conflict(f"node {node_id!r} is {node['status']}: it does not wait for a decision")
    approvers = (node["input_params"] or {}).get("approvers") or []
    if approvers and actor not in approvers:
        names = " or ".join(approvers)
        if actor is None:
            raise Forbidden(
                f"node {node_id!r} is decided by {names}: use the API key of that name with a server, or --by with "
                "the database itself"
            )
        raise Forbidden(f"node {node_id!r} is decided by {names}, not by {actor}")
    await send(conn, job_id, ApprovalDecision(node_id, node["task_id"], approved, datetime.now(UTC), actor, comment))
    return job
