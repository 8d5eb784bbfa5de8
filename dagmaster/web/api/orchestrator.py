"""The orchestrators, as they see themselves."""

from fastapi import APIRouter

from dagmaster.schemas.fleet import FleetActivity, FleetStats, FleetStatus
from dagmaster.store.orchestrators import backlog
from dagmaster.web.access import READERS
from dagmaster.web.errors import documented
from dagmaster.web.orchestrators import activity_of, alive, stats_of, status_of
from dagmaster.web.services import Conn, Given

router = APIRouter(prefix="/api/v1/orchestrator", tags=["fleet"], responses=documented(503))


@router.get("/status", dependencies=[READERS])
async def orchestrator_status(services: Given, conn: Conn) -> FleetStatus:
    """Who is at work and how much was done; 503 when there is nobody."""
    rows = await alive(conn, services)
    return status_of(rows, (await backlog(conn))["pending_results"])


@router.get("/stats", dependencies=[READERS])
async def orchestrator_stats(services: Given, conn: Conn) -> FleetStats:
    """How fast they are, and what fails."""
    return stats_of(await alive(conn, services))


@router.get("/activity", dependencies=[READERS])
async def orchestrator_activity(services: Given, conn: Conn) -> FleetActivity:
    """What they do at this moment, and what they did last."""
    return activity_of(await alive(conn, services), await backlog(conn))
