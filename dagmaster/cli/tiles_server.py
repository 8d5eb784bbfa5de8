"""Serve until stopped, for `dagmaster tiles`."""

import asyncio
import logging

import typer

from dagmaster.authoring.catalog import Catalog
from dagmaster.cli.api_server import check_address
from dagmaster.cli.runtime import stop_on_signals
from dagmaster.handlers import Registry
from dagmaster.settings import Settings
from dagmaster.store.databases import database
from dagmaster.store.notifications import Notifier
from dagmaster.web.api.tiles import load_tile_routes
from dagmaster.web.app import create_tiles_app
from dagmaster.web.server import bind, served, url_of
from dagmaster.web.services import opened_services

log = logging.getLogger(__name__)


def serve_tiles(settings: Settings, host: str | None, port: int | None) -> None:
    load_tile_routes()
    listener = bind(host or settings.api_host, settings.api_port if port is None else port)
    with database(settings, guarded=True) as dsn:

        async def run() -> None:
            stop = stop_on_signals()
            is_local = await check_address(dsn, listener)
            async with (
                opened_services(
                    dsn,
                    settings,
                    notifier=Notifier(dsn),
                    catalog=Catalog(),
                    registry=Registry(),
                    is_local=is_local,
                ) as services,
                served(create_tiles_app(services), listener),
            ):
                typer.echo(f"serving {url_of(listener)}")
                await stop.wait()

        asyncio.run(run())
    log.info("stopped")
