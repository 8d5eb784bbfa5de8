"""The installation as operators see it."""

from importlib.metadata import version
from typing import Annotated

from fastapi import APIRouter, Query

from dagmaster.gateway.access import OPERATORS
from dagmaster.gateway.health import HEALTH, show_health
from dagmaster.gateway.operations import list_jobs, page_of
from dagmaster.gateway.services import Conn, Limit, ServicesDep
from dagmaster.http.paging import Offset, to_page
from dagmaster.model.states import NodeStatus
from dagmaster.schemas.common import Page
from dagmaster.schemas.gateway import (
    GatewayConfig,
    GatewayEvent,
    GatewayJob,
    GatewayNode,
    GatewayWorkflow,
)
from dagmaster.store import gateway_status as store
from dagmaster.store.gateway_status import JobFilter

router = APIRouter(prefix="/api/admin", tags=["admin"])

Hours = Annotated[int, Query(ge=1, le=24 * 7, description="How far back.")]

router.get("/health", **HEALTH)(show_health)


@router.get("/config", dependencies=[OPERATORS])
async def show_config(services: ServicesDep) -> GatewayConfig:
    """Show the limits of the gateway, without addresses and secrets."""
    settings = services.settings
    return GatewayConfig(
        version=version("dagmaster"),
        has_orchestrator=settings.url is not None,
        has_worker=settings.worker_url is not None,
        timeout_seconds=settings.gateway_timeout_seconds,
        rate_per_second=settings.gateway_rate_per_second,
        burst=settings.gateway_burst,
        max_body_bytes=settings.max_body_bytes,
        orphan_threshold_seconds=settings.orphan_threshold_seconds,
    )


@router.get("/active-jobs", dependencies=[OPERATORS])
async def list_active_jobs(
    services: ServicesDep, conn: Conn, limit: Limit = 50, offset: Offset = 0
) -> Page[GatewayJob]:
    """List unfinished jobs, newest first."""
    return await list_jobs(services, conn, JobFilter(only_live=True), limit, offset)


@router.get("/orphans", dependencies=[OPERATORS])
async def list_orphans(services: ServicesDep, conn: Conn, limit: Limit = 50, offset: Offset = 0) -> Page[GatewayJob]:
    """List unfinished jobs without a live owner."""
    return await list_jobs(services, conn, JobFilter(only_live=True, only_orphans=True), limit, offset)


@router.get("/recent-events", dependencies=[OPERATORS])
async def list_recent_events(
    services: ServicesDep, conn: Conn, hours: Hours = 1, limit: Limit = 50, offset: Offset = 0
) -> Page[GatewayEvent]:
    """List the events of all jobs, newest first."""
    rows = await store.list_recent_events(conn, hours=hours, limit=limit + 1, offset=offset)
    return page_of(services, GatewayEvent, rows, limit, offset)


@router.get("/workflows", dependencies=[OPERATORS])
async def list_workflows(conn: Conn, limit: Limit = 50, offset: Offset = 0) -> Page[GatewayWorkflow]:
    """List the workflows that were submitted."""
    rows = await store.list_workflows(conn, limit=limit + 1, offset=offset)
    return to_page([GatewayWorkflow.model_validate(row) for row in rows], limit, offset)


@router.get("/running-nodes", dependencies=[OPERATORS])
async def list_running_nodes(
    services: ServicesDep, conn: Conn, limit: Limit = 50, offset: Offset = 0
) -> Page[GatewayNode]:
    """List running nodes, latest change first."""
    rows = await store.list_nodes_by_status(conn, NodeStatus.RUNNING, hours=0, limit=limit + 1, offset=offset)
    return page_of(services, GatewayNode, rows, limit, offset)


@router.get("/failed-nodes", dependencies=[OPERATORS])
async def list_failed_nodes(
    services: ServicesDep, conn: Conn, hours: Hours = 24, limit: Limit = 50, offset: Offset = 0
) -> Page[GatewayNode]:
    """List failed nodes of unfinished or recent jobs, latest failure first."""
    rows = await store.list_nodes_by_status(conn, NodeStatus.FAILED, hours=hours, limit=limit + 1, offset=offset)
    return page_of(services, GatewayNode, rows, limit, offset)
