"""Serve until stopped, for `dagmaster dev`, `orchestrator`, `api` and `worker`."""

import asyncio
import logging
import socket
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import typer

from dagmaster import __version__
from dagmaster.authoring.catalog import IN_PYTHON, Catalog
from dagmaster.authoring.implicit import default_queue, own_queue
from dagmaster.authoring.preparation import queues_of
from dagmaster.authoring.yaml import QueueRules
from dagmaster.cli.autoreload import Reloader, start_again
from dagmaster.cli.definitions import load_catalog, load_registry
from dagmaster.cli.output import count_of, listed, print_fact
from dagmaster.cli.runtime import stop_on_signals, tune_garbage_collection, until_stopped
from dagmaster.fleet import background, fleet, worker_options
from dagmaster.handlers import Registry
from dagmaster.queues.http import HttpTransport
from dagmaster.queues.httplogs import HttpLogs
from dagmaster.settings import Settings
from dagmaster.store.databases import database
from dagmaster.web.server import bind, port_of, served, url_of
from dagmaster.worker.health import health_app
from dagmaster.worker.options import WorkerOptions
from dagmaster.worker.spool import Spool, spool_folder
from dagmaster.worker.worker import Worker

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ApiArguments:
    host: str | None
    port: int | None

    def listen(self, settings: Settings) -> socket.socket:
        return bind(self.host or settings.api_host, settings.api_port if self.port is None else self.port)


@dataclass(frozen=True, slots=True)
class Api:
    """A socket, and the catalogue of workflows to serve on it."""

    listener: socket.socket
    catalog: Catalog


@dataclass(frozen=True, slots=True)
class WorkerArguments:
    """`queues` are names separated by commas."""

    queues: str | None
    concurrency: int | None

    def options(self, settings: Settings, handlers: Sequence[str] | None) -> WorkerOptions:
        default = default_queue(settings)
        queues = settings.worker_queues or ([default] if default else [])
        if self.queues is not None:
            queues = [name.strip() for name in self.queues.split(",") if name.strip()]
        return worker_options(settings, queues, self.concurrency, handlers=handlers)


def serve_dev(
    settings: Settings,
    handlers: Sequence[str] | None,
    concurrency: int | None,
    api: ApiArguments,
    *,
    reload: bool,
) -> None:
    registry = load_registry(settings, handlers)
    queue = own_queue(settings)
    catalog = load_catalog(
        settings, QueueRules(registry.queues(), queue, is_open=True, contracts=registry.contracts(in_full=True))
    )
    named = {name for workflow in catalog.workflows.values() for name in queues_of(workflow)}
    queues = sorted({queue, *settings.worker_queues, *named})
    options = worker_options(settings, queues, concurrency, handlers=handlers)
    listener = api.listen(settings)
    with database(settings, writable=True, guarded=True) as dsn:
        location = settings.data_dir.resolve() if settings.database_dsn() is None else "the configured server"
        print_fact("dagmaster", __version__)
        print_fact("data", str(location))
        print_fact("workflows", workflows_of(catalog, settings.workflows_dir))
        print_fact("handlers", _handlers_of(registry))
        print_fact("queues", listed(queues))
        print_fact("api", url_of(listener))
        print_fact("web", f"{url_of(listener)}/ui/")
        reloader = Reloader(catalog, [*settings.handlers, *(handlers or ())], queues) if reload else None
        chosen_port = port_of(listener)
        serve(
            dsn,
            settings,
            orchestrate=True,
            work=options,
            registry=registry,
            api=Api(listener, catalog),
            greeting="ready; stop with Ctrl-C",
            reloader=reloader,
        )
        if reloader is not None and reloader.needs_restart:
            start_again(chosen_port)


def serve_orchestrator(
    settings: Settings,
    handlers: Sequence[str] | None,
    *,
    api: ApiArguments | None = None,
    worker: WorkerArguments | None = None,
) -> None:
    options = worker.options(settings, handlers) if worker is not None else None
    registry = load_registry(settings, handlers) if worker or api else None
    opened = open_api(settings, registry, handlers, api) if api is not None and registry is not None else None
    with database(settings, writable=True, guarded=True) as dsn:
        log.info("starting orchestrator")
        serve(dsn, settings, orchestrate=True, work=options, registry=registry, api=opened)


def serve_api(settings: Settings, handlers: Sequence[str] | None, arguments: ApiArguments) -> None:
    registry = load_registry(settings, handlers)
    api = open_api(settings, registry, handlers, arguments)
    with database(settings, writable=True, guarded=True) as dsn:
        serve(dsn, settings, registry=registry, api=api)


def serve_worker(
    ctx: typer.Context,
    settings: Settings,
    handlers: Sequence[str] | None,
    worker: WorkerArguments,
    health_port: int | None,
) -> None:
    registry = load_registry(settings, handlers)
    options = worker.options(settings, handlers)
    port = settings.worker_health_port if health_port is None else health_port
    listener = None if port is None else bind(settings.worker_health_host, port)
    if listener is not None:
        typer.echo(f"health      {url_of(listener)}/health")
    # A configured database takes precedence, unless the command line names a server.
    if settings.url is not None and (ctx.obj.url is not None or settings.database_dsn() is None):
        run_remotely(settings, options, registry, listener)
        return
    with database(settings, writable=True, guarded=True) as dsn:
        names = ", ".join(options.queues)
        log.info("starting worker: queues %s, concurrency %s", names, count_of(options.concurrency, "task"))
        serve(dsn, settings, work=options, registry=registry, health=listener)


def workflows_of(catalog: Catalog, folder: Path) -> str:
    """Their names, and where they come from; without any, the folder that is read."""
    from_files = [name for name, source in catalog.sources.items() if source != IN_PYTHON]
    has_python = len(from_files) < len(catalog.sources)
    places = [*([str(folder)] if from_files or not has_python else []), *(["Python"] if has_python else [])]
    return f"{listed(sorted(catalog.workflows))} (in {' and '.join(places)})"


def _handlers_of(registry: Registry) -> str:
    """The names of the user's handlers, and the number of built-in ones."""
    own = [handler.name for handler in registry if not handler.function.__module__.startswith("dagmaster.")]
    built_in = f"{len(registry.names()) - len(own)} built-in"
    return f"{listed(sorted(own))}, {built_in}" if own else built_in


def open_api(settings: Settings, registry: Registry, handlers: Sequence[str] | None, arguments: ApiArguments) -> Api:
    queues = registry.queues() if handlers or settings.handlers else None
    catalog = load_catalog(settings, QueueRules(queues, default_queue(settings), is_open=True))
    return Api(arguments.listen(settings), catalog)


def serve(
    dsn: str,
    settings: Settings,
    *,
    orchestrate: bool = False,
    work: WorkerOptions | None = None,
    registry: Registry | None = None,
    api: Api | None = None,
    health: socket.socket | None = None,
    greeting: str = "",
    reloader: Reloader | None = None,
) -> None:
    """Serve until a signal, until a role fails, or until an edited file needs a restart."""

    async def run() -> None:
        stop = stop_on_signals()
        async with AsyncExitStack() as stack:
            roles = fleet(dsn, settings, orchestrate=orchestrate, work=work, registry=registry)
            running = await stack.enter_async_context(roles)
            if api is not None and registry is not None:
                # Loads FastAPI, which takes half a second and which a worker does not need.
                from dagmaster.cli import api_server

                serving = api_server.serving(dsn, settings, running, api.listener, api.catalog, registry)
                app = await stack.enter_async_context(serving)
                if reloader is not None:
                    reloader.on_change = partial(api_server.sync_schedules, app)
            await stack.enter_async_context(serving_health(running.worker, health))
            tune_garbage_collection()
            if greeting:
                typer.echo(greeting)
            elif api is not None:
                typer.echo(f"serving {url_of(api.listener)}")
            async with background(reloader.run(stop)) if reloader is not None else nullcontext():
                await until_stopped(running, stop)

    asyncio.run(run())
    log.info("stopped")


def serving_health(worker: Worker | None, listener: socket.socket | None) -> AbstractAsyncContextManager[None]:
    """Serve the health checks of a worker over HTTP."""
    return nullcontext() if worker is None or listener is None else served(health_app(worker), listener)


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
