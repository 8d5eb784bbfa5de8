"""A remote worker, over HTTP."""

import asyncio
import logging
import socket

from dagmaster.cli.app import Shared
from dagmaster.cli.health import serving_health
from dagmaster.cli.runtime import stop_on_signals
from dagmaster.handlers import Registry
from dagmaster.queues.http import HttpTransport
from dagmaster.queues.httplogs import HttpLogs
from dagmaster.settings import Settings
from dagmaster.worker.options import WorkerOptions
from dagmaster.worker.spool import Spool, spool_folder
from dagmaster.worker.worker import Worker

log = logging.getLogger(__name__)


def is_remote(settings: Settings, shared: Shared) -> bool:
    """A configured database takes precedence, unless the command line names a server."""
    return settings.url is not None and (shared.url is not None or settings.database_dsn() is None)


def run_remotely(settings: Settings, options: WorkerOptions, registry: Registry, health: socket.socket | None) -> None:
    """Run until a signal. Unsent results are kept for the next worker of this folder."""
    assert settings.url is not None
    url, key = settings.url, settings.api_key.get_secret_value() if settings.api_key else None

    async def run() -> None:
        stop = stop_on_signals()
        spool = Spool(spool_folder(settings.data_dir, url, key))
        transport = HttpTransport(url, key)
        worker = Worker(transport, registry, options, HttpLogs(transport), spool=spool)
        try:
            async with serving_health(worker, health):
                await worker.run(stop)
        except ExceptionGroup as group:  # From the worker's chores.
            raise _first(group) from group
        finally:
            await transport.close()
            spool.close()

    log.info("starting worker at %s: queues %s", url, ", ".join(options.queues))
    asyncio.run(run())
    log.info("stopped")


def _first(error: Exception) -> Exception:
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
