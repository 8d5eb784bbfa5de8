"""Where the HTTP API is served. What serves it takes half a second to load: a worker does without."""

import socket
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from dagmaster.authoring.catalog import Catalog
from dagmaster.fleet import Fleet
from dagmaster.handlers import Registry
from dagmaster.settings import Settings
from dagmaster.web.server import bind


@dataclass(frozen=True, slots=True)
class Door:
    """A place, and the workflows that can be asked for there."""

    listener: socket.socket
    catalog: Catalog


def open_door(settings: Settings, host: str | None, port: int | None) -> socket.socket:
    return bind(host or settings.api_host, settings.api_port if port is None else port)


async def sync_schedules(app: Any) -> None:
    await import_module("dagmaster.cli.api_server").sync_schedules(app)


def serving(
    dsn: str, settings: Settings, running: Fleet, door: Door, registry: Registry
) -> AbstractAsyncContextManager[Any]:
    made: AbstractAsyncContextManager[Any] = import_module("dagmaster.cli.api_server").serving(
        dsn, settings, running, door, registry
    )
    return made
