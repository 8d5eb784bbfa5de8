"""The health checks of a worker over HTTP."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from dagmaster.settings import Settings
from dagmaster.web.server import bind, served
from dagmaster.worker.health import health_app
from dagmaster.worker.worker import Worker


def open_health(settings: Settings, port: int | None) -> socket.socket | None:
    """None if no port is configured."""
    chosen = settings.worker_health_port if port is None else port
    return None if chosen is None else bind(settings.worker_health_host, chosen)


@asynccontextmanager
async def serving_health(worker: Worker | None, listener: socket.socket | None) -> AsyncIterator[None]:
    if worker is None or listener is None:
        yield
        return
    async with served(health_app(worker), listener):
        yield
