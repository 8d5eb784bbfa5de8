"""The status of jobs, for operators."""

from typing import Annotated

from fastapi import APIRouter, Query

from dagmaster.errors import Invalid, UnknownJob
from dagmaster.gateway.access import OPERATORS
from dagmaster.gateway.operations import add_nodes, as_job_id, event_reply, job_detail, job_reply, node_reply
from dagmaster.gateway.paging import Limit
from dagmaster.gateway.services import Conn, ServicesDep
from dagmaster.http.errors import documented
from dagmaster.http.paging import Offset, to_page
from dagmaster.model.states import JobStatus
from dagmaster.schemas.common import Page
from dagmaster.schemas.gateway import GatewayEvent, GatewayJob, GatewayJobDetail, GatewayNode, GatewayStats
from dagmaster.store import gateway_status as store
from dagmaster.store.gateway_status import JobFilter

router = APIRouter(prefix="/api/status", tags=["status"])

MAX_FOUND = 100
IncludeNodes = Annotated[bool, Query(description="Include the nodes of each job.")]


@router.get("/jobs", dependencies=[OPERATORS])
async def list_jobs(
    services: ServicesDep,
    conn: Conn,
    status: JobStatus | None = None,
    workflow_id: str | None = None,
    include_nodes: IncludeNodes = False,
    limit: Limit = 50,
    offset: Offset = 0,
) -> Page[GatewayJob]:
    """List jobs, newest first."""
    where = JobFilter(status, workflow_id)
    seconds = services.settings.orphan_threshold_seconds
    rows = await store.list_jobs(conn, where, orphan_seconds=seconds, limit=limit + 1, offset=offset)
    page = to_page([job_reply(services, row) for row in rows], limit, offset)
    if include_nodes:
        await add_nodes(services, conn, page.items)
    return page


@router.get("/job/{job_id}", responses=documented(404), dependencies=[OPERATORS])
async def show_job(
    job_id: str, services: ServicesDep, conn: Conn, include_nodes: IncludeNodes = False
) -> GatewayJobDetail:
    """Get a job."""
    row = await store.get_job(conn, as_job_id(job_id), orphan_seconds=services.settings.orphan_threshold_seconds)
    job = job_detail(services, row)
    if include_nodes:
        await add_nodes(services, conn, [job])
    return job


@router.get("/job/{job_id}/nodes", responses=documented(404), dependencies=[OPERATORS])
async def list_nodes(
    job_id: str, services: ServicesDep, conn: Conn, limit: Limit = 100, offset: Offset = 0
) -> Page[GatewayNode]:
    """List the nodes of a job in the order of their start."""
    number = as_job_id(job_id)
    await store.get_job(conn, number, orphan_seconds=services.settings.orphan_threshold_seconds)
    rows = await store.list_nodes(conn, [number], limit=limit + 1, offset=offset)
    return to_page([node_reply(services, row) for row in rows], limit, offset)


@router.get("/job/{job_id}/events", responses=documented(404), dependencies=[OPERATORS])
async def list_events(
    job_id: str, services: ServicesDep, conn: Conn, limit: Limit = 100, offset: Offset = 0
) -> Page[GatewayEvent]:
    """List the events of a job in order."""
    number = as_job_id(job_id)
    await store.get_job(conn, number, orphan_seconds=services.settings.orphan_threshold_seconds)
    rows = await store.list_events(conn, number, limit=limit + 1, offset=offset)
    return to_page([event_reply(services, row) for row in rows], limit, offset)


@router.get("/stats", dependencies=[OPERATORS])
async def show_stats(conn: Conn) -> GatewayStats:
    """Count jobs by status, tasks, requests and assets."""
    return GatewayStats.model_validate(await store.read_stats(conn))


@router.get("/lookup", responses=documented(404), dependencies=[OPERATORS])
async def look_up(
    services: ServicesDep, conn: Conn, correlation_id: str | None = None, idempotency_key: str | None = None
) -> list[GatewayJob]:
    """Find jobs by their correlation id, which is the request id of a partner, or by their idempotency key."""
    if (correlation_id is None) == (idempotency_key is None):
        raise Invalid("give either correlation_id or idempotency_key")
    where = JobFilter(correlation_id=correlation_id, idempotency_key=idempotency_key)
    seconds = services.settings.orphan_threshold_seconds
    rows = await store.list_jobs(conn, where, orphan_seconds=seconds, limit=MAX_FOUND)
    if not rows:
        raise UnknownJob("no job has that correlation id or idempotency key")
    return [job_reply(services, row) for row in rows]
