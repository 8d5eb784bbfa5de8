"""Liveness and readiness."""

from fastapi import APIRouter, Request
from fastapi.responses import Response

from dagmaster.gateway.access import EVERYBODY
from dagmaster.gateway.health import Readiness, failed
from dagmaster.http.errors import documented, reply
from dagmaster.schemas.system import Alive

router = APIRouter(prefix="/api", tags=["health"])


@router.get("/livez", dependencies=[EVERYBODY])
async def livez() -> Alive:
    """Return 200 while the process responds."""
    return Alive(status="alive")


@router.get("/readyz", response_model=Alive, responses=documented(503), dependencies=[EVERYBODY])
async def readyz(request: Request) -> Alive | Response:
    """Return 200 if the gateway can serve, otherwise 503 with the checks that failed."""
    readiness: Readiness = request.app.state.readiness
    failures = failed(await readiness.examine())
    if failures:
        reasons = "; ".join(f"{check.name}: {check.failure}" for check in failures)
        details = [{"check": check.name, "message": check.failure} for check in failures]
        return reply(503, "unavailable", f"not ready: {reasons}", details)
    return Alive(status="ready")
