"""The HTTP API beside what else runs in this process."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from dagmaster.cli.door import Door
from dagmaster.errors import Misconfigured
from dagmaster.fleet import Fleet
from dagmaster.handlers import Registry
from dagmaster.settings import Settings
from dagmaster.store.connect import opened
from dagmaster.store.keys import any_keys
from dagmaster.web.app import create_app, forget_keys
from dagmaster.web.reloading import reloading
from dagmaster.web.scheduling import sync_catalog
from dagmaster.web.services import opened_services
from dagmaster.web.serving import is_loopback, served


async def sync_schedules(app: FastAPI) -> None:
    """Make the schedules what the workflows say that are loaded now."""
    services = app.state.services
    async with services.pool.connection() as conn:
        await sync_catalog(conn, services)


@asynccontextmanager
async def serving(
    dsn: str, settings: Settings, running: Fleet, door: Door, registry: Registry
) -> AsyncIterator[FastAPI]:
    """Without keys only this machine is served: whoever binds elsewhere needs one first."""
    is_local = is_loopback(door.listener.getsockname()[0])
    async with opened(dsn, application="dagmaster api") as conn:
        if not is_local and not await any_keys(conn):
            raise Misconfigured(
                f"{door.listener.getsockname()[0]} can be reached by others, and there is no API key yet: make one "
                "with `dagmaster keys create --name me --role admin`, or serve on 127.0.0.1"
            )
    async with opened_services(
        dsn,
        settings,
        notifier=running.notifier,
        catalog=door.catalog,
        registry=registry,
        is_local=is_local,
        orchestrator=running.orchestrator,
    ) as services:
        app = create_app(services)
        await sync_schedules(app)
        async with reloading(services, lambda: forget_keys(app)), served(app, door.listener):
            yield app
