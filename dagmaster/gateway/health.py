"""The health of the gateway and of the services that it uses."""

import asyncio
from typing import Final

import httpx

from dagmaster.gateway.readiness import Readiness
from dagmaster.gateway.services import Services
from dagmaster.schemas.gateway import GatewayCheck, GatewayHealth

PROBE_SECONDS: Final = 5.0


async def examine(services: Services, readiness: Readiness) -> GatewayHealth:
    """The gateway's own checks, and the API."""
    own = [_check(check.name, check.failure) for check in await readiness.examine()]
    return _health([*own, await probe(services, "orchestrator", services.settings.url)])


async def examine_targets(services: Services) -> GatewayHealth:
    """The configured targets of the proxy."""
    targets = {"orchestrator": services.settings.url, "worker": services.settings.worker_url}
    probes = (probe(services, name, url) for name, url in targets.items() if url is not None)
    return _health(list(await asyncio.gather(*probes)))


async def probe(services: Services, name: str, url: str | None) -> GatewayCheck:
    """Whether the target is ready. Its message is dropped, because it may name machines."""
    if url is None:
        return _check(name, "not configured")
    try:
        response = await services.http.get(f"{url}/readyz", timeout=PROBE_SECONDS)
    except httpx.TimeoutException:
        return _check(name, "it did not answer in time")
    except httpx.TransportError:
        return _check(name, "it cannot be reached")
    return _check(name, None if response.is_success else f"it answered {response.status_code}")


def _check(name: str, failure: str | None) -> GatewayCheck:
    return GatewayCheck(name=name, status="unhealthy" if failure else "healthy", message=failure or "ready")


def _health(checks: list[GatewayCheck]) -> GatewayHealth:
    is_healthy = all(check.status == "healthy" for check in checks)
    return GatewayHealth(status="healthy" if is_healthy else "unhealthy", checks=checks)
