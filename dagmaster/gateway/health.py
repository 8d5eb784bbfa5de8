"""Readiness and health: the checks of the gateway, and of the services that it uses.

Until the readiness checks pass, only the probes are served.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final

import httpx
import psycopg
from fastapi import Request, Response
from psycopg_pool import PoolTimeout
from starlette.types import ASGIApp, Receive, Scope, Send

from dagmaster.gateway.access import OPERATORS
from dagmaster.gateway.proxy import target_urls
from dagmaster.gateway.services import Services, ServicesDep
from dagmaster.http.errors import reply
from dagmaster.schemas.gateway import GatewayCheck, GatewayHealth
from dagmaster.store.connect import AWAY
from dagmaster.store.gateway import reads_tables

PROBES: Final = frozenset({"/api/livez", "/api/readyz"})
REACH_SECONDS: Final = 2.0
AGAIN_SECONDS: Final = 1.0
PROBE_SECONDS: Final = 5.0
HEALTH: Any = {"responses": {503: {"model": GatewayHealth}}, "dependencies": [OPERATORS]}


@dataclass(frozen=True, slots=True)
class Check:
    """`failure` is None if the check passed."""

    name: str
    failure: str | None = None


class Readiness:
    """The latest results. Failed checks are repeated on request, at most once a second."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._lock = asyncio.Lock()
        self._checks: Sequence[Check] = ()
        self._due = -1.0

    async def examine(self) -> Sequence[Check]:
        async with self._lock:
            if monotonic() >= self._due:
                self._checks = [self._check_settings(), await self._check_database()]
                self._due = monotonic() + AGAIN_SECONDS
            return self._checks

    async def failures(self) -> Sequence[Check]:
        """The known failures. Passed checks are not repeated for each request."""
        if self._checks and not failed(self._checks):
            return ()
        return failed(await self.examine())

    def _check_settings(self) -> Check:
        settings = self._services.settings
        missing = [
            name
            for name, value in (
                ("DAGMASTER_GATEWAY_DATABASE_URL", settings.gateway_dsn()),
                ("DAGMASTER_URL", settings.url),
                ("DAGMASTER_API_KEY", settings.api_key),
            )
            if not value
        ]
        return Check("env_vars", f"not set: {', '.join(missing)}" if missing else None)

    async def _check_database(self) -> Check:
        pool = self._services.pool
        if pool is None:
            return Check("database", "no database is configured")
        try:
            async with pool.connection(timeout=REACH_SECONDS) as conn:
                if await reads_tables(conn):
                    return Check("database", "the role can do more than read; use one of `dagmaster db create-reader`")
        except psycopg.errors.InsufficientPrivilege:
            return Check("database", "the role cannot read the views; run `dagmaster db create-reader` again")
        except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
            return Check("database", "the schema is missing or outdated; run `dagmaster migrate`")
        except PoolTimeout:
            return Check("database", "it cannot be reached")
        except AWAY as error:
            return Check("database", f"the check failed: {type(error).__name__}")
        return Check("database")


def failed(checks: Sequence[Check]) -> Sequence[Check]:
    return [check for check in checks if check.failure is not None]


class ReadyGate:
    """Rejects all requests except the probes until the checks pass."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in PROBES:
            await self._app(scope, receive, send)
            return
        readiness: Readiness = scope["app"].state.readiness
        if await readiness.failures():
            await reply(503, "unavailable", "the gateway is not ready; see /api/readyz")(scope, receive, send)
            return
        await self._app(scope, receive, send)


async def show_health(request: Request, services: ServicesDep, response: Response) -> GatewayHealth:
    """Check the settings, the database and the orchestrator's API."""
    own: Sequence[Check] = await request.app.state.readiness.examine()
    return _health([*own, await _probe(services, "orchestrator", services.settings.url)], response)


async def show_target_health(services: ServicesDep, response: Response) -> GatewayHealth:
    """Check the targets of the proxy."""
    urls = {target: url for target, url in target_urls(services).items() if url is not None}
    return _health(await asyncio.gather(*(_probe(services, target, url) for target, url in urls.items())), response)


async def _probe(services: Services, name: str, url: str | None) -> Check:
    """Whether the target is ready. Its message is dropped, because it may name machines."""
    if url is None:
        return Check(name, "not configured")
    try:
        answer = await services.http.get(f"{url}/readyz", timeout=PROBE_SECONDS)
    except httpx.TimeoutException:
        return Check(name, "it did not answer in time")
    except httpx.TransportError:
        return Check(name, "it cannot be reached")
    return Check(name, None if answer.is_success else f"it answered {answer.status_code}")


def _health(checks: Sequence[Check], response: Response) -> GatewayHealth:
    is_healthy = not failed(checks)
    response.status_code = 200 if is_healthy else 503
    replies = [
        GatewayCheck(
            name=check.name, status="unhealthy" if check.failure else "healthy", message=check.failure or "ready"
        )
        for check in checks
    ]
    return GatewayHealth(status="healthy" if is_healthy else "unhealthy", checks=replies)
