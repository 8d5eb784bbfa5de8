"""Serve until stopped, for `dagmaster dev`, `orchestrator`, `api` and `worker`."""

import asyncio
import logging
import socket
from collections.abc import Sequence
from contextlib import AsyncExitStack, nullcontext
from dataclasses import dataclass
from functools import partial

import typer

from dagmaster import __version__
from dagmaster.authoring.implicit import default_queue, own_queue
from dagmaster.authoring.preparation import queues_of
from dagmaster.authoring.yaml import QueueRules
from dagmaster.cli.api_listener import ApiListener, open_listener, serving, sync_schedules
from dagmaster.cli.autoreload import Reloader, start_again
from dagmaster.cli.definitions import load_catalog, load_registry
from dagmaster.cli.health import open_health, serving_health
from dagmaster.cli.output import count_of, listed, print_fact
from dagmaster.cli.remote_worker import is_remote, run_remotely
from dagmaster.cli.runtime import stop_on_signals, tune_garbage_collection, until_stopped
from dagmaster.fleet import background, fleet, worker_options
from dagmaster.handlers import Registry
from dagmaster.settings import Settings
from dagmaster.store.databases import database
from dagmaster.web.server import port_of, url_of
from dagmaster.worker.options import WorkerOptions

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ApiArguments:
    host: str | None
    port: int | None


@dataclass(frozen=True, slots=True)
class WorkerArguments:
    """`queues` are names separated by commas."""

    queues: str | None
    concurrency: int | None

    def options(self, settings: Settings, handlers: Sequence[str] | None) -> WorkerOptions:
        return worker_options(settings, chosen_queues(settings, self.queues), self.concurrency, handlers=handlers)


def serve_dev(
    settings: Settings,
    handlers: Sequence[str] | None,
    concurrency: int | None,
    host: str | None,
    port: int | None,
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
    listener = open_listener(settings, host, port)
    with database(settings, writable=True, guarded=True) as dsn:
        location = settings.data_dir.resolve() if settings.database_dsn() is None else "the configured server"
        print_fact("dagmaster", __version__)
        print_fact("data", str(location))
        print_fact("workflows", f"{listed(sorted(catalog.workflows))} (in {settings.workflows_dir})")
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
            api_listener=ApiListener(listener, catalog),
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
    options = None
    if worker is not None:
        options = worker.options(settings, handlers)
    registry = load_registry(settings, handlers) if worker or api else None
    api_listener = make_api_listener(settings, handlers, api) if api else None
    with database(settings, writable=True, guarded=True) as dsn:
        log.info("starting orchestrator")
        greeting = f"serving {url_of(api_listener.listener)}" if api_listener else ""
        serve(
            dsn,
            settings,
            orchestrate=True,
            work=options,
            registry=registry,
            api_listener=api_listener,
            greeting=greeting,
        )


def serve_api(settings: Settings, handlers: Sequence[str] | None, api: ApiArguments) -> None:
    registry = load_registry(settings, handlers)
    api_listener = make_api_listener(settings, handlers, api)
    with database(settings, writable=True, guarded=True) as dsn:
        serve(
            dsn,
            settings,
            registry=registry,
            api_listener=api_listener,
            greeting=f"serving {url_of(api_listener.listener)}",
        )


def serve_worker(
    ctx: typer.Context,
    settings: Settings,
    handlers: Sequence[str] | None,
    worker: WorkerArguments,
    health_port: int | None,
) -> None:
    registry = load_registry(settings, handlers)
    options = worker.options(settings, handlers)
    listener = open_health(settings, health_port)
    if listener is not None:
        typer.echo(f"health      {url_of(listener)}/health")
    if is_remote(settings, ctx.obj):
        run_remotely(settings, options, registry, listener)
        return
    with database(settings, writable=True, guarded=True) as dsn:
        names = ", ".join(options.queues)
        log.info("starting worker: queues %s, concurrency %s", names, count_of(options.concurrency, "task"))
        serve(dsn, settings, work=options, registry=registry, health=listener)


def _handlers_of(registry: Registry) -> str:
    """The names of the user's handlers, and the number of built-in ones."""
    own = [handler.name for handler in registry if not handler.function.__module__.startswith("dagmaster.")]
    built_in = f"{len(registry.names()) - len(own)} built-in"
    return f"{listed(sorted(own))}, {built_in}" if own else built_in


def chosen_queues(settings: Settings, names: str | None) -> Sequence[str]:
    if names is not None:
        return [name.strip() for name in names.split(",") if name.strip()]
    if settings.worker_queues:
        return settings.worker_queues
    default = default_queue(settings)
    return [default] if default else []


def make_api_listener(settings: Settings, handlers: Sequence[str] | None, api: ApiArguments) -> ApiListener:
    registry = load_registry(settings, handlers)
    queues = registry.queues() if handlers or settings.handlers else None
    catalog = load_catalog(settings, QueueRules(queues, default_queue(settings), is_open=True))
    return ApiListener(open_listener(settings, api.host, api.port), catalog)


def serve(
    dsn: str,
    settings: Settings,
    *,
    orchestrate: bool = False,
    work: WorkerOptions | None = None,
    registry: Registry | None = None,
    api_listener: ApiListener | None = None,
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
            if api_listener is not None and registry is not None:
                app = await stack.enter_async_context(serving(dsn, settings, running, api_listener, registry))
                if reloader is not None:
                    reloader.on_change = partial(sync_schedules, app)
            await stack.enter_async_context(serving_health(running.worker, health))
            tune_garbage_collection()
            if greeting:
                typer.echo(greeting)
            async with background(reloader.run(stop)) if reloader is not None else nullcontext():
                await until_stopped(running, stop)

    asyncio.run(run())
    log.info("stopped")
