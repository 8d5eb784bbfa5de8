"""The status and statistics of orchestrators."""

from fastapi import APIRouter

from dagmaster.schemas.fleet import FleetActivity, FleetStats, FleetStatus
from dagmaster.store.orchestrators import backlog
from dagmaster.web.access import READERS
from dagmaster.web.errors import documented
from dagmaster.web.orchestrators import activity_of, alive, stats_of, status_of
from dagmaster.web.services import Conn, ServicesDep

router = APIRouter(prefix="/api/v1/orchestrator", tags=["fleet"], responses=documented(503))


@router.get("/status", dependencies=[READERS])
async def orchestrator_status(services: ServicesDep, conn: Conn) -> FleetStatus:
    """List the orchestrators and their work; 503 if none is running."""
    rows = await alive(conn, services)
    return status_of(rows, (await backlog(conn))["pending_results"])


@router.get("/stats", dependencies=[READERS])
async def orchestrator_stats(services: ServicesDep, conn: Conn) -> FleetStats:
    """Get the throughput and error rate of the orchestrators."""
    return stats_of(await alive(conn, services))


@router.get("/activity", dependencies=[READERS])
async def orchestrator_activity(services: ServicesDep, conn: Conn) -> FleetActivity:
    """Get the current and recent activity of the orchestrators."""
    return activity_of(await alive(conn, services), await backlog(conn))
