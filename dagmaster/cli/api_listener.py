"""The address of the HTTP API. The server itself takes half a second to load, and a worker does not need it."""

import socket
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dagmaster.authoring.catalog import Catalog
from dagmaster.fleet import Fleet
from dagmaster.handlers import Registry
from dagmaster.settings import Settings
from dagmaster.web.server import bind

if TYPE_CHECKING:
    from fastapi import FastAPI


@dataclass(frozen=True, slots=True)
class ApiListener:
    """A socket and the catalogue of workflows to serve on it."""

    listener: socket.socket
    catalog: Catalog


def open_listener(settings: Settings, host: str | None, port: int | None) -> socket.socket:
    return bind(host or settings.api_host, settings.api_port if port is None else port)


async def sync_schedules(app: "FastAPI") -> None:
    from dagmaster.cli import api_server

    await api_server.sync_schedules(app)


def serving(
    dsn: str, settings: Settings, running: Fleet, api_listener: ApiListener, registry: Registry
) -> "AbstractAsyncContextManager[FastAPI]":
    from dagmaster.cli import api_server

    return api_server.serving(dsn, settings, running, api_listener, registry)
