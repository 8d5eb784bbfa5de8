"""Nodes that an external caller adds to a running job."""

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import TypedDict

from dagmaster.errors import Conflict, Invalid, JobEnded
from dagmaster.ids import JobId, NodeId
from dagmaster.model.added_nodes import awaited, may_add
from dagmaster.model.dynamic_nodes import read_slice
from dagmaster.model.states import JOB_TERMINAL
from dagmaster.store.connect import Connection
from dagmaster.store.job_control import POLL_SECONDS, live_job
from dagmaster.store.mail_codec import encode_slice
from dagmaster.store.mailbox import add_mail
from dagmaster.store.notifications import MAIL
from dagmaster.store.statements import fetch, fetch_as, fetch_one

# How many unknown ids an error message names.
NAMED = 5
# How many groups, and how many dependencies, are listed for one job.
MAX_SHOWN = 10_000


class GroupRow(TypedDict):
    """`nodes` counts the group's own nodes, without those of nested groups."""

    group_id: int
    parent_group_id: int | None
    name: str
    created_at: datetime
    nodes: int


class DependencyRow(TypedDict):
    """A type is `task` or `group`; only added tasks have a node id here."""

    previous_id: int
    previous_type: str
    previous_node_id: NodeId | None
    next_id: int
    next_type: str
    next_node_id: NodeId | None


async def list_groups(conn: Connection, job_id: JobId) -> list[GroupRow]:
    return await fetch_as(conn, GroupRow, "list_groups", {"job_id": job_id, "limit": MAX_SHOWN})


async def list_dependencies(conn: Connection, job_id: JobId) -> list[DependencyRow]:
    return await fetch_as(conn, DependencyRow, "list_dependencies", {"job_id": job_id, "limit": MAX_SHOWN})


async def until_added(conn: Connection, job_id: JobId, node_ids: Sequence[str], *, seconds: float) -> bool:
    """Wait until the owner has added them; False if it has not read them yet. Raises JobEnded, Conflict if refused."""
    deadline = asyncio.get_running_loop().time() + seconds
    while True:
        values = {"job_id": job_id, "node_ids": list(node_ids)}
        row = await fetch_one(conn, "added_status", values)
        if row is None or row["known"] == len(node_ids):
            return row is not None
        if row["status"] in JOB_TERMINAL:
            raise JobEnded(f"job {job_id} is {row['status']}: the nodes were added too late")
        if not row["is_unread"]:
            refusal = await fetch_one(conn, "last_refusal", {"job_id": job_id})
            raise Conflict(f"job {job_id}: {refusal['warning'] if refusal else 'the added nodes were refused'}")
        if asyncio.get_running_loop().time() > deadline:
            return False
        await asyncio.sleep(POLL_SECONDS)


async def add_to_job(
    conn: Connection, job_id: JobId, slices: Sequence[bytes], *, actor: str | None = None
) -> list[str]:
    """Mail the nodes to the job's owner, and return their ids. Raises Invalid, UnknownJob, JobEnded."""
    nodes = [node for part in map(read_slice, slices) for node in part.nodes]
    ids = [node.node_id for node in nodes]
    for node in nodes:
        if not may_add(None, node.node_id):
            raise Invalid(f"the id of an externally added node is `added.` and a number, not {node.node_id!r}")
        if node.type == "task" and node.queue is None:
            raise Invalid(f"{node.node_id} needs a queue")
    await live_job(conn, job_id, "no nodes can be added")
    await _check_known(conn, job_id, {source for node in nodes for source in awaited(node)} - set(ids))
    await add_mail(conn, [encode_slice(job_id, content, actor) for content in slices])
    await conn.execute(f"NOTIFY {MAIL}")
    return ids


async def _check_known(conn: Connection, job_id: JobId, node_ids: set[str]) -> None:
    """Nodes still in the mail are unknown here: add them together with the nodes that wait for them, or wait."""
    if not node_ids:
        return
    rows = await fetch(conn, "known_nodes", {"job_id": job_id, "node_ids": sorted(node_ids)})
    unknown = sorted(node_ids - {row["node_id"] for row in rows})
    if unknown:
        raise Invalid(f"job {job_id} has no node {', '.join(unknown[:NAMED])} to wait for")
