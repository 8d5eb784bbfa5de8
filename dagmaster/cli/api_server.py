"""The HTTP API, next to the other roles of this process."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from math import inf

from fastapi import FastAPI
from psycopg_pool import PoolTimeout

from dagmaster.authoring.catalog import Catalog
from dagmaster.errors import Misconfigured
from dagmaster.fleet import Fleet
from dagmaster.handlers import Registry
from dagmaster.settings import Settings
from dagmaster.store.connect import LOST, opened
from dagmaster.store.keys import any_keys
from dagmaster.web.app import create_app, forget_keys
from dagmaster.web.catalog_reload import reloading
from dagmaster.web.server import is_loopback, served
from dagmaster.web.services import opened_services

RETRY_SECONDS = 1.0

log = logging.getLogger(__name__)


async def sync_schedules(app: FastAPI) -> None:
    """Update the schedules from the loaded workflows."""
    services = app.state.services
    async with services.pool.connection() as conn:
        await services.sync_schedules(conn)


async def _sync_when_free(app: FastAPI) -> None:
    """Retry while the database has no free connection or fails over."""
    while True:
        try:
            await sync_schedules(app)
            return
        except (*LOST, PoolTimeout) as error:
            log.warning("cannot store the schedules yet, retrying: %s", str(error).partition("\n")[0])
        await asyncio.sleep(RETRY_SECONDS)


async def check_address(dsn: str, listener: socket.socket) -> bool:
    """Whether only this machine is served. Raises Misconfigured for any other address while there are no keys."""
    host = listener.getsockname()[0]
    async with opened(dsn, application="dagmaster api", busy_seconds=inf) as conn:
        if not is_loopback(host) and not await any_keys(conn):
            raise Misconfigured(
                f"{host} is open to other machines, but there is no API key yet: "
                "create one with `dagmaster keys create --name me --role admin`, or serve on 127.0.0.1"
            )
    return is_loopback(host)


@asynccontextmanager
async def serving(
    dsn: str, settings: Settings, running: Fleet, listener: socket.socket, catalog: Catalog, registry: Registry
) -> AsyncIterator[FastAPI]:
    is_local = await check_address(dsn, listener)
    async with opened_services(
        dsn,
        settings,
        notifier=running.notifier,
        catalog=catalog,
        registry=registry,
        is_local=is_local,
        orchestrator=running.orchestrator,
    ) as services:
        app = create_app(services)
        await _sync_when_free(app)
        async with reloading(services, lambda: forget_keys(app)), served(app, listener):
            yield app
