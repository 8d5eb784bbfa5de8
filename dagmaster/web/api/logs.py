"""The logs and results of the attempts at a node."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import StreamingResponse
from psycopg_pool import PoolClosed

from dagmaster.errors import Invalid, NotFound
from dagmaster.http.errors import documented
from dagmaster.ids import NodeId, TaskId
from dagmaster.model.redact import redact
from dagmaster.schemas.common import Page
from dagmaster.schemas.timeline import AttemptOfNode, LoggedNode, LogLine, LogMatches
from dagmaster.store import attempts as attempt_store
from dagmaster.store import nodes as node_store
from dagmaster.store.connect import LOST, Connection, Pool
from dagmaster.tasklogs.reader import LogRange, LogSelection, NodeLog, NodeState, why_none
from dagmaster.web.access import READERS_OF_OWN, Job
from dagmaster.web.paging import Limit, Offset, to_page
from dagmaster.web.services import Conn, Services, ServicesDep

router = APIRouter(prefix="/api/v1/jobs/{job_id}", tags=["nodes"])

TEXT: Any = {200: {"content": {"text/plain": {}}, "description": "The log as it was written."}}
MAX_LINES = 1_000_000
MAX_MATCHES = 1000
Attempt = Annotated[int | None, Query(ge=1, le=2**31 - 1, description="Attempt number; default: the latest.")]


@router.get("/logs", responses=documented(404), dependencies=[READERS_OF_OWN])
async def list_logs(job: Job, conn: Conn, limit: Limit = 50, offset: Offset = 0) -> Page[LoggedNode]:
    """List the nodes that may have a log: failed nodes first, then running ones."""
    rows = await attempt_store.list_logged_nodes(conn, job["job_id"], limit=limit + 1, offset=offset)
    return to_page([LoggedNode(**redact(row)) for row in rows], limit, offset)


@router.get(
    "/nodes/{node_id}/logs",
    response_class=StreamingResponse,
    responses={**TEXT, **documented(404)},
    dependencies=[READERS_OF_OWN],
)
async def read_log(
    job: Job,
    node_id: NodeId,
    conn: Conn,
    services: ServicesDep,
    request: Request,
    attempt: Attempt = None,
    offset: Annotated[int, Query(ge=0, lt=2**63, description="Skip this many bytes.")] = 0,
    tail: Annotated[int | None, Query(ge=0, le=MAX_LINES, description="Only this many of the last lines.")] = None,
    follow: Annotated[bool, Query(description="Stream the log while it is written, including later attempts.")] = False,
) -> StreamingResponse:
    """Get the log of an attempt. `X-Log-Size` is its size in bytes, `X-Attempt` the attempt number."""
    if tail is not None and offset:
        raise Invalid("use either `offset` or `tail`, not both")
    selection = LogSelection(attempt, offset, tail, follow)
    node, state, log = await _find_log(services, conn, job, node_id, selection)
    read_state = NodeStateReader(services.pool, node, state, lambda: request.app.state.is_stopping)
    headers = {
        "X-Log-Size": str(log.size),
        "X-Attempt": str(log.attempt),
        "X-Content-Type-Options": "nosniff",
        "X-Accel-Buffering": "no",
        "Cache-Control": "no-store",
    }
    return StreamingResponse(_pieces(node, log, selection, read_state), media_type="text/plain", headers=headers)


@router.get("/nodes/{node_id}/logs/search", responses=documented(404), dependencies=[READERS_OF_OWN])
async def search_log(
    job: Job,
    node_id: NodeId,
    conn: Conn,
    services: ServicesDep,
    text: Annotated[str, Query(min_length=1, max_length=1000, description="Text to search for; case-insensitive.")],
    attempt: Attempt = None,
    limit: Annotated[int, Query(ge=1, le=MAX_MATCHES, description="Maximum number of lines.")] = 100,
) -> LogMatches:
    """Search the log of an attempt; returns matching lines with their numbers."""
    node, _, log = await _find_log(services, conn, job, node_id, LogSelection(attempt))
    matches = await node.search(log.attempt, text, limit)
    return LogMatches(
        attempt=log.attempt,
        lines=[LogLine(number=line.number, text=line.text) for line in matches.lines],
        total=matches.total,
        log_lines=matches.log_lines,
    )


async def _find_log(
    services: Services, conn: Connection, job: Job, node_id: NodeId, selection: LogSelection
) -> tuple[NodeLog, NodeState, LogRange]:
    """Raises NotFound with the reason."""
    node = NodeLog(services.task_logs, job["job_id"], node_id)
    state = NodeState.of(await node_store.get_node_head(conn, job["job_id"], node_id))
    log = await node.find(selection, state)
    if log is None:
        place = await attempt_store.find_log_place(conn, node.task_id(selection.attempt or state.newest_begun))
        raise NotFound(why_none(node, selection, state, place))
    return node, state, log


def _pieces(
    node: NodeLog, log: LogRange, selection: LogSelection, read_state: "NodeStateReader"
) -> AsyncIterator[bytes]:
    if selection.follow:
        return node.follow(log.attempt, log.start, read_state, goes_on=selection.attempt is None)
    return node.pieces(log.attempt, log.start, log.size)


@dataclass(slots=True)
class NodeStateReader:
    """Reads the state of the node. Tolerates an unavailable database; returns None when the server stops."""

    pool: Pool
    node: NodeLog
    last: NodeState
    is_stopping: Callable[[], bool]

    async def __call__(self) -> NodeState | None:
        if self.is_stopping():
            return None
        try:
            async with self.pool.connection() as conn:
                row = await node_store.get_node_head(conn, self.node.job_id, self.node.node_id)
        except (NotFound, PoolClosed):
            return None
        except LOST:
            return self.last
        self.last = NodeState.of(row)
        return self.last


@router.get("/nodes/{node_id}/attempts", responses=documented(404), dependencies=[READERS_OF_OWN])
async def list_attempts(
    job: Job, node_id: NodeId, conn: Conn, services: ServicesDep, limit: Limit = 50, offset: Offset = 0
) -> Page[AttemptOfNode]:
    """List the attempts at a node with their reports and log sizes."""
    await node_store.get_node_head(conn, job["job_id"], node_id)
    rows = (await attempt_store.attempts_of_node(conn, job["job_id"], node_id))[offset : offset + limit + 1]
    sizes = await asyncio.gather(*(services.log_bytes(row["task_id"]) for row in rows))
    attempts = [
        AttemptOfNode(**redact(row), attempt=_number(row["task_id"]), log_bytes=size)
        for row, size in zip(rows, sizes, strict=True)
    ]
    return to_page(attempts, limit, offset)


def _number(task_id: TaskId) -> int | None:
    """Manually inserted results may have other ids."""
    last = task_id.rpartition("_")[2]
    return int(last) + 1 if last.isascii() and last.isdecimal() else None
