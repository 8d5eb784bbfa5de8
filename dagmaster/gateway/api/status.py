"""The status of jobs, for operators."""

from typing import Annotated

from fastapi import APIRouter, Query

from dagmaster.errors import Invalid, UnknownJob
from dagmaster.gateway import operations
from dagmaster.gateway.access import OPERATORS
from dagmaster.gateway.operations import add_nodes, get_job, page_of, reply
from dagmaster.gateway.services import Conn, Limit, ServicesDep
from dagmaster.http.errors import documented
from dagmaster.http.paging import Offset
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
    page = await operations.list_jobs(services, conn, JobFilter(status, workflow_id), limit, offset)
    if include_nodes:
        await add_nodes(services, conn, page.items)
    return page


@router.get("/job/{job_id}", responses=documented(404), dependencies=[OPERATORS])
async def show_job(
    job_id: str, services: ServicesDep, conn: Conn, include_nodes: IncludeNodes = False
) -> GatewayJobDetail:
    """Get a job."""
    job = reply(services, GatewayJobDetail, await get_job(services, conn, job_id))
    if include_nodes:
        await add_nodes(services, conn, [job])
    return job


@router.get("/job/{job_id}/nodes", responses=documented(404), dependencies=[OPERATORS])
async def list_nodes(
    job_id: str, services: ServicesDep, conn: Conn, limit: Limit = 100, offset: Offset = 0
) -> Page[GatewayNode]:
    """List the nodes of a job in the order of their start."""
    job = await get_job(services, conn, job_id)
    rows = await store.list_nodes(conn, [job["job_id"]], limit=limit + 1, offset=offset)
    return page_of(services, GatewayNode, rows, limit, offset)


@router.get("/job/{job_id}/events", responses=documented(404), dependencies=[OPERATORS])
async def list_events(
    job_id: str, services: ServicesDep, conn: Conn, limit: Limit = 100, offset: Offset = 0
) -> Page[GatewayEvent]:
    """List the events of a job in order."""
    job = await get_job(services, conn, job_id)
    rows = await store.list_events(conn, job["job_id"], limit=limit + 1, offset=offset)
    return page_of(services, GatewayEvent, rows, limit, offset)


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
    jobs = (await operations.list_jobs(services, conn, where, MAX_FOUND, 0)).items
    if not jobs:
        raise UnknownJob("no job has that correlation id or idempotency key")
    return jobs
