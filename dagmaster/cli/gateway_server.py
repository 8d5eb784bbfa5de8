"""Serve until stopped, for `dagmaster gateway`."""

import asyncio
import logging

import typer

from dagmaster.cli.runtime import stop_on_signals
from dagmaster.gateway.app import create_app
from dagmaster.settings import Settings
from dagmaster.web.server import bind, served, url_of

log = logging.getLogger(__name__)


def serve_gateway(settings: Settings, host: str | None, port: int | None) -> None:
    listener = bind(host or settings.api_host, settings.api_port if port is None else port)

    async def run() -> None:
        stop = stop_on_signals()
        app = create_app(settings)
        async with app.router.lifespan_context(app), served(app, listener):
            typer.echo(f"serving {url_of(listener)}")
            await stop.wait()

    asyncio.run(run())
    log.info("stopped")
