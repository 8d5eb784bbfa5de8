"""Nodes and tasks, of one job and of all."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Response

from dagmaster.http.errors import documented
from dagmaster.ids import NodeId, WorkerId
from dagmaster.model.outcome import Children
from dagmaster.model.redact import redact
from dagmaster.schemas.common import Page
from dagmaster.schemas.jobs import NodeReply
from dagmaster.schemas.nodes import NodeDetail, NodeOfJob, TaskReply
from dagmaster.schemas.timeline import AttemptReply, CheckpointReply
from dagmaster.store import attempts as attempt_store
from dagmaster.store import nodes as node_store
from dagmaster.web import views
from dagmaster.web.access import READERS, READERS_OF_OWN, Job, as_job_id
from dagmaster.web.paging import Limit, Offset, to_page
from dagmaster.web.services import Conn, ServicesDep

router = APIRouter(prefix="/api/v1", tags=["nodes"])

Status = Annotated[str | None, Query(description="Only nodes or tasks with this status; case-insensitive.")]


@router.get("/nodes", responses=documented(404), dependencies=[READERS])
async def list_nodes(
    services: ServicesDep,
    conn: Conn,
    job_id: str | None = None,
    status: Status = None,
    workflow_id: str | None = None,
    limit: Limit = 50,
    offset: Offset = 0,
) -> Page[NodeOfJob]:
    """List nodes of all jobs, newest jobs first. Outputs are not included."""
    rows = await node_store.view_nodes(
        conn,
        job_id=as_job_id(job_id) if job_id else None,
        status=status,
        workflow_id=workflow_id,
        limit=limit + 1,
        offset=offset,
    )
    counts = await services.node_counts.of(conn, node_store.jobs_of(rows))
    nodes = [NodeOfJob(**_fields(row, counts[row["job_id"]].children.get(row["node_id"]))) for row in rows]
    return to_page(nodes, limit, offset)


@router.get("/tasks", responses=documented(404), dependencies=[READERS])
async def list_tasks(
    conn: Conn,
    job_id: str | None = None,
    state: Literal["waiting", "held", "running", "completed", "failed"] | None = None,
    queue: str | None = None,
    handler: str | None = None,
    worker_id: WorkerId | None = None,
    limit: Limit = 50,
    offset: Offset = 0,
) -> Page[TaskReply]:
    """List attempts: waiting and running ones first, oldest first; then ended ones, newest first.

    Unless you name a job, ended attempts are those of the newest 1000 jobs. Only unfinished attempts have a queue.
    """
    rows = await attempt_store.list_attempts(
        conn,
        job_id=as_job_id(job_id) if job_id else None,
        state=state,
        queue=queue,
        handler=handler,
        worker_id=worker_id,
        limit=limit + 1,
        offset=offset,
    )
    return to_page([TaskReply(**redact(row)) for row in rows], limit, offset)


@router.get("/jobs/{job_id}/nodes", responses=documented(404), dependencies=[READERS_OF_OWN])
async def list_job_nodes(
    job: Job,
    services: ServicesDep,
    conn: Conn,
    parent: Annotated[str | None, Query(description="List the children of this fan-out instead.")] = None,
    status: Status = None,
    limit: Limit = 100,
    offset: Offset = 0,
) -> Page[NodeReply]:
    """List the nodes of a job in the order in which they started."""
    rows = await node_store.list_job_nodes(
        conn,
        job["job_id"],
        parent=parent,
        status=status,
        max_bytes=node_store.MAX_SHOWN_BYTES,
        limit=limit + 1,
        offset=offset,
    )
    children = (await services.node_counts.of(conn, [job]))[job["job_id"]].children
    nodes = [views.node_reply(job["job_id"], redact(row), children.get(row["node_id"])) for row in rows]
    return to_page(nodes, limit, offset)


@router.get(
    "/jobs/{job_id}/nodes/{node_id}",
    response_model=NodeDetail,
    responses=documented(404),
    dependencies=[READERS_OF_OWN],
)
async def get_node(job: Job, node_id: NodeId, services: ServicesDep, conn: Conn) -> NodeDetail | Response:
    """Get a node with its parameters, result and attempts."""
    row = await node_store.get_node(conn, job["job_id"], node_id)
    attempts = await attempt_store.attempts_of_node(conn, job["job_id"], node_id)
    children = (await services.node_counts.of(conn, [job]))[job["job_id"]].children
    size = (row["output_bytes"] or 0) + row["held_bytes"]
    return await views.answer(lambda: _detail(row, children.get(node_id), attempts), size)


def _detail(row: node_store.WholeNode, children: Children | None, attempts: list[dict[str, Any]]) -> NodeDetail:
    return NodeDetail(
        **_fields(row, children),
        params=redact(row["input_params"]),
        checkpoint_phase=row["checkpoint_phase"],
        checkpoint_data=redact(row["checkpoint_data"]),
        checkpoint_saved_at=row["checkpoint_saved_at"],
        attempts=[AttemptReply(**redact(attempt)) for attempt in attempts],
    )


@router.get("/jobs/{job_id}/nodes/{node_id}/checkpoints", responses=documented(404), dependencies=[READERS_OF_OWN])
async def list_checkpoints(
    job: Job, node_id: NodeId, conn: Conn, limit: Limit = 50, offset: Offset = 0
) -> Page[CheckpointReply]:
    """List the checkpoints of a node, newest first."""
    await node_store.get_node_head(conn, job["job_id"], node_id)
    rows = await attempt_store.list_checkpoints(conn, job["job_id"], node_id, limit=limit + 1, offset=offset)
    return to_page([CheckpointReply(**redact(row)) for row in rows], limit, offset)


def _fields(row: Mapping[str, Any], children: Children | None) -> dict[str, Any]:
    """The shown fields of a row, which may have more."""
    reply = views.node_reply(row["job_id"], redact(row), children).model_dump()
    return reply | {"workflow_id": row.get("workflow_id")}
