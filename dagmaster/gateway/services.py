"""The resources that the gateway's routes share."""

import socket
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Final, TypeVar
from urllib.parse import urlsplit

import httpx
from fastapi import Depends, Query
from fastapi.requests import HTTPConnection
from psycopg.conninfo import conninfo_to_dict

from dagmaster.certificates import trusted_authorities
from dagmaster.client import AsyncClient
from dagmaster.client.call import Call
from dagmaster.errors import Misconfigured
from dagmaster.gateway.rate_limit import RateLimiter
from dagmaster.gateway.scrub import Scrubber
from dagmaster.gateway.upstream import RETRIES, Upstream
from dagmaster.settings import Settings
from dagmaster.store.connect import Connection, Pool, open_pool

T = TypeVar("T")

STATEMENT_SECONDS: Final = 20.0


@dataclass(frozen=True, slots=True)
class Services:
    """`pool` and `upstream` are None if the settings do not name them: then only the probes are served.

    `scrubber` is for partners and reviewers, `operations` for operators.
    """

    settings: Settings
    pool: Pool | None
    upstream: Upstream | None
    http: httpx.AsyncClient
    limiter: RateLimiter
    scrubber: Scrubber
    operations: Scrubber

    def connection(self) -> AbstractAsyncContextManager[Connection]:
        """For reads before or after a change, so that no connection is held while the API works."""
        if self.pool is None:
            raise Misconfigured("the gateway has no database")
        return self.pool.connection()

    async def ask(self, call: Call[T]) -> T:
        """Call the API. Raises BadGateway, GatewayTimeout, or the error of the API without internals."""
        if self.upstream is None:
            raise Misconfigured("the gateway has no orchestrator")
        return await self.upstream.ask(call)


@asynccontextmanager
async def opened_services(settings: Settings) -> AsyncIterator[Services]:
    """Does not wait for the database: the readiness checks try again."""
    hosts = known_hosts(settings)
    scrubber = Scrubber(hosts)
    async with AsyncExitStack() as stack:
        pool = upstream = None
        if (dsn := settings.gateway_dsn()) is not None:
            pool = await open_pool(
                dsn,
                application="dagmaster gateway",
                size=settings.api_pool_size,
                statement_timeout_seconds=STATEMENT_SECONDS,
            )
            stack.push_async_callback(pool.close)
        if settings.url is not None:
            key = settings.api_key.get_secret_value() if settings.api_key else None
            timeout_seconds = settings.gateway_timeout_seconds
            client = AsyncClient(settings.url, key, timeout_seconds=timeout_seconds, retries=RETRIES)
            upstream = Upstream(await stack.enter_async_context(client), scrubber, timeout_seconds)
        http = await stack.enter_async_context(
            httpx.AsyncClient(
                timeout=settings.gateway_timeout_seconds,
                follow_redirects=False,
                trust_env=False,
                verify=trusted_authorities(trust_env=False),
            )
        )
        yield Services(
            settings,
            pool,
            upstream,
            http,
            RateLimiter(settings.gateway_rate_per_second, settings.gateway_burst),
            scrubber,
            Scrubber(hosts, hides_ids=False),
        )


def known_hosts(settings: Settings) -> set[str]:
    """This machine, and the hosts of the settings, except for plain words such as `db`.

    The public URL is not internal.
    """
    named = {urlsplit(url).hostname or "" for url in (settings.url, settings.worker_url) if url is not None}
    if (dsn := settings.gateway_dsn()) is not None:
        named |= {host for host in str(conninfo_to_dict(dsn).get("host", "")).split(",") if not host.startswith("/")}
    public = {urlsplit(settings.public_url).hostname} if settings.public_url is not None else set()
    return {socket.gethostname(), *(host for host in named - public if host and not host.isalpha())}


# Async although it never waits: FastAPI runs plain functions in threads.
async def services_of(request: HTTPConnection) -> Services:
    services: Services = request.app.state.services
    return services


ServicesDep = Annotated[Services, Depends(services_of)]


async def connection(services: ServicesDep) -> AsyncIterator[Connection]:
    """For one request; returned before the response is sent."""
    async with services.connection() as conn:
        yield conn


Conn = Annotated[Connection, Depends(connection, scope="function")]
Limit = Annotated[int, Query(ge=1, le=500, description="Maximum number of rows.")]
