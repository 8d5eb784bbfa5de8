"""The operators' proxy to the API and to workers."""

from typing import Any

from fastapi import APIRouter, Request, Response

from dagmaster.gateway.access import OPERATORS, Caller
from dagmaster.gateway.health import HEALTH, show_target_health
from dagmaster.gateway.proxy import ProxyTarget, forward
from dagmaster.gateway.services import ServicesDep
from dagmaster.http.errors import documented

router = APIRouter(prefix="/api/proxy", tags=["proxy"])

FORWARDED: Any = {
    "dependencies": [OPERATORS],
    "response_class": Response,
    "responses": documented(404, 413, 502, 504),
}


router.get("/health", **HEALTH)(show_target_health)


@router.get("/{target}/{path:path}", **FORWARDED)
async def read_through(
    target: ProxyTarget, path: str, request: Request, caller: Caller, services: ServicesDep
) -> Response:
    """Read from the orchestrator or a worker."""
    return await forward(services, caller, target, path, request)


@router.post("/{target}/{path:path}", **FORWARDED)
async def write_through(
    target: ProxyTarget, path: str, request: Request, caller: Caller, services: ServicesDep
) -> Response:
    """Send a change to the orchestrator."""
    return await forward(services, caller, target, path, request)
