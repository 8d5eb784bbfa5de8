"""The progress of a job, polled from the database until the job has ended."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from time import perf_counter
from typing import Any

from dagmaster.cli.output import between, time_shown
from dagmaster.cli.progress import SHARE_OF_TIME, FanView, JobView, NodeView, Outlook, Show
from dagmaster.errors import DatabaseUnavailable, UnknownJob
from dagmaster.ids import JobId
from dagmaster.model.graph import Graph, NodeType
from dagmaster.model.outcome import NO_CHILDREN, Children, end_of, outcome_of
from dagmaster.model.progress import JobSnapshot, percent_done, work_percent
from dagmaster.model.states import JobStatus, NodeStatus
from dagmaster.store.connect import LOST, Connection, opened
from dagmaster.store.estimates import Histories, ProgressSnapshot, load_snapshot
from dagmaster.store.jobs import get_job, job_status, returned_by
from dagmaster.store.node_counts import nodes_of_jobs
from dagmaster.store.nodes import JobNode, list_job_nodes

FIRST_POLL_SECONDS = 0.02
POLL_SECONDS = 0.125
RECONNECT_SECONDS = 1.0


def steps_of(graph: Graph) -> list[str]:
    """The nodes without start and end, in graph order."""
    return [name for name, node in graph.nodes.items() if node.type not in (NodeType.START, NodeType.END)]


async def look(conn: Connection, job_id: JobId, order: Sequence[str], histories: Histories) -> JobView:
    """The job with the nodes that `order` names."""
    rows = await job_status(conn, [job_id])
    if not rows:
        raise UnknownJob(f"job {job_id} was removed")
    [job] = rows
    nodes: dict[str, JobNode] = {row["node_id"]: row for row in await list_job_nodes(conn, job_id, inline_bytes=0)}
    snapshot = await load_snapshot(conn, job_id)
    return JobView(
        job_id,
        job["workflow_id"],
        JobStatus(job["status"]),
        [node_view(nodes[name], snapshot.job) for name in order if name in nodes],
        job["error_message"],
        job["result_data"],
        time_shown(job, snapshot.job.now),
        await outlook_of(conn, snapshot, histories),
        await returned_by(conn, await get_job(conn, job_id)) if job["status"] == JobStatus.COMPLETED else None,
    )


async def outlook_of(conn: Connection, snapshot: ProgressSnapshot, histories: Histories) -> Outlook:
    estimate = await histories.estimate(conn, snapshot)
    return Outlook(
        work_percent(snapshot.job),
        snapshot.job.now,
        estimate.ends_at if estimate else None,
        estimate.basis if estimate else None,
        estimate.overdue.total_seconds() if estimate else 0.0,
        percent_done(snapshot.job),
    )


def with_outcome(row: Mapping[str, Any], children: Children, now: datetime) -> dict[str, Any]:
    """A row of a node with its outcome and duration, as in the HTTP API."""
    ran = between(row["started_at"], end_of(row["completed_at"], children) or now)
    return {
        **row,
        "outcome": outcome_of(row["status"], children, row["ended_by"]),
        "children": children.counts,
        "duration_seconds": None if ran is None or row["status"] == NodeStatus.SKIPPED else round(ran, 3),
    }


async def list_shown_nodes(
    conn: Connection, job_id: JobId, now: datetime, *, with_children: bool = False
) -> list[dict[str, Any]]:
    nodes = await list_job_nodes(conn, job_id, with_children=with_children)
    children = (await nodes_of_jobs(conn, [job_id]))[job_id].children
    return [with_outcome(node, children.get(node["node_id"], NO_CHILDREN), now) for node in nodes]


def node_view(row: JobNode, job: JobSnapshot) -> NodeView:
    """The outcome comes from the row: the snapshot was read later and may be newer."""
    snapshot = job.nodes.get(row["node_id"])
    fan = snapshot.fan if snapshot else None
    view = FanView(fan.counts, fan.retries, fan.last_ended_at, fan.items) if fan else None
    children = snapshot.children if snapshot else NO_CHILDREN
    return NodeView.of(with_outcome(row, children, job.now), job.now, view)


async def follow(dsn: str, job_id: JobId, order: Sequence[str], show: Show) -> JobView:
    """Poll and show the job until it has ended. Tolerates an unavailable database."""
    histories = Histories()
    while True:
        with suppress(*LOST, DatabaseUnavailable):
            async with opened(dsn, application="dagmaster cli") as conn:
                return await _follow(conn, job_id, order, show, histories)
        await asyncio.sleep(RECONNECT_SECONDS)


async def _follow(conn: Connection, job_id: JobId, order: Sequence[str], show: Show, histories: Histories) -> JobView:
    pause = FIRST_POLL_SECONDS
    while True:
        began = perf_counter()
        view = await look(conn, job_id, order, histories)
        show(view)
        if view.has_ended:
            return view
        await asyncio.sleep(max(pause, SHARE_OF_TIME * (perf_counter() - began)))
        pause = min(pause * 1.5, POLL_SECONDS)
