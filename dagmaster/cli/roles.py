"""The processes that serve: everything in one, or a role each."""

import asyncio
import logging
import socket
from collections.abc import Sequence
from contextlib import AsyncExitStack, nullcontext
from functools import partial
from typing import Annotated

import typer

from dagmaster import __version__
from dagmaster.authoring.implicit import default_queue, own_queue
from dagmaster.authoring.preparation import queues_of
from dagmaster.authoring.yaml import QueueRules
from dagmaster.cli.api_listener import Door, open_door, serving, sync_schedules
from dagmaster.cli.autoreload import Reloader, start_again
from dagmaster.cli.definitions import load_catalog, load_registry
from dagmaster.cli.health import answering, open_health
from dagmaster.cli.options import Concurrency, Handlers, Host, Port, begin
from dagmaster.cli.output import count_of, listed, print_fact
from dagmaster.cli.remote_worker import is_far, work_far
from dagmaster.cli.runtime import stop_on_signals, tune_garbage_collection, until_stopped
from dagmaster.fleet import background, fleet, worker_options
from dagmaster.handlers import Registry
from dagmaster.settings import Settings
from dagmaster.store.databases import database
from dagmaster.web.server import port_of, url_of
from dagmaster.worker.options import WorkerOptions

Queues = Annotated[
    str | None, typer.Option("--queues", metavar="A,B", help="The queues to take tasks from; else of the settings.")
]

HealthPort = Annotated[
    int | None,
    typer.Option("--health-port", metavar="PORT", help="Answer /health, /livez and /readyz there.", min=0, max=65535),
]

log = logging.getLogger(__name__)

app = typer.Typer(add_completion=False)


@app.command()
def dev(
    ctx: typer.Context,
    handlers: Handlers = None,
    concurrency: Concurrency = None,
    host: Host = None,
    port: Port = None,
    reload: Annotated[
        bool, typer.Option("--reload/--no-reload", help="Take up edited workflows, handlers and Python modules.")
    ] = True,
) -> None:
    """Run everything in one process until Ctrl-C.

    An orchestrator, a worker and the HTTP API on the PostgreSQL of the data
    folder. Unfinished jobs resume; others are submitted in the web UI, over
    HTTP or from a second terminal. Edited files are reloaded: workflows at
    once, Python by a restart. Jobs keep the definition they were submitted with.

    \b
    For example:
      dagmaster dev --handlers my_handlers.py
      dagmaster submit hello_world --poll
    """
    settings = begin(ctx, quiet=False)
    registry = load_registry(settings, handlers)
    queue = own_queue(settings)
    catalog = load_catalog(
        settings, QueueRules(registry.queues(), queue, is_open=True, contracts=registry.contracts(in_full=True))
    )
    named = {name for workflow in catalog.workflows.values() for name in queues_of(workflow)}
    queues = sorted({queue, *settings.worker_queues, *named})
    options = worker_options(settings, queues, concurrency, handlers=handlers)
    listener = open_door(settings, host, port)
    with database(settings, writable=True, guarded=True) as dsn:
        place = settings.data_dir.resolve() if settings.database_dsn() is None else "the configured server"
        print_fact("dagmaster", __version__)
        print_fact("data", str(place))
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
            door=Door(listener, catalog),
            greeting="ready; stop with Ctrl-C",
            reloader=reloader,
        )
        if reloader is not None and reloader.needs_restart:
            start_again(chosen_port)


def _handlers_of(registry: Registry) -> str:
    """The user's own; of the built-in ones only how many."""
    own = [one.name for one in registry if not one.function.__module__.startswith("dagmaster.")]
    built_in = f"{len(registry.names()) - len(own)} built-in"
    return f"{listed(sorted(own))}, {built_in}" if own else built_in


@app.command()
def orchestrator(
    ctx: typer.Context,
    with_worker: Annotated[bool, typer.Option("--with-worker", help="Run a worker in the same process.")] = False,
    with_api: Annotated[bool, typer.Option("--with-api", help="Serve the HTTP API in the same process.")] = False,
    queues: Queues = None,
    concurrency: Concurrency = None,
    handlers: Handlers = None,
    host: Host = None,
    port: Port = None,
) -> None:
    """Run an orchestrator until it is stopped.

    As many as you like may run on one database: each owns some of the jobs, and
    when it ends the others take over.

    \b
    For example:
      dagmaster orchestrator --database-url postgresql://dagmaster@db/dagmaster
      dagmaster orchestrator --with-worker --queues default
      dagmaster orchestrator --with-api --port 8080
    """
    settings = begin(ctx, quiet=False)
    options = None
    if with_worker:
        options = worker_options(settings, chosen_queues(settings, queues), concurrency, handlers=handlers)
    registry = load_registry(settings, handlers) if with_worker or with_api else None
    door = make_door(settings, handlers, host, port) if with_api else None
    with database(settings, writable=True, guarded=True) as dsn:
        log.info("the orchestrator is starting")
        greeting = f"serving {url_of(door.listener)}" if door else ""
        serve(dsn, settings, orchestrate=True, work=options, registry=registry, door=door, greeting=greeting)


@app.command()
def api(ctx: typer.Context, host: Host = None, port: Port = None, handlers: Handlers = None) -> None:
    """Serve the HTTP API until it is stopped.

    Without API keys it is served to this machine alone. `dagmaster keys create`
    makes the first one; then --host 0.0.0.0 serves everybody who has a key.

    \b
    For example:
      dagmaster api --port 8080
      dagmaster api --host 0.0.0.0 --database-url postgresql://dagmaster@db/dagmaster
    """
    settings = begin(ctx, quiet=False)
    registry = load_registry(settings, handlers)
    door = make_door(settings, handlers, host, port)
    with database(settings, writable=True, guarded=True) as dsn:
        serve(dsn, settings, registry=registry, door=door, greeting=f"serving {url_of(door.listener)}")


@app.command()
def worker(
    ctx: typer.Context,
    queues: Queues = None,
    concurrency: Concurrency = None,
    handlers: Handlers = None,
    health_port: HealthPort = None,
) -> None:
    """Run a worker until it is stopped.

    On SIGTERM it takes no more tasks, finishes what it can, and gives back the
    rest. With --url it needs no database, only a server and a key of the role
    worker.

    \b
    For example:
      dagmaster worker --queues default,heavy --handlers my_package.handlers
      dagmaster worker --url https://dagmaster.example.com --queues default
    """
    settings = begin(ctx, quiet=False)
    registry = load_registry(settings, handlers)
    options = worker_options(settings, chosen_queues(settings, queues), concurrency, handlers=handlers)
    listener = open_health(settings, health_port)
    if listener is not None:
        typer.echo(f"health      {url_of(listener)}/health")
    if is_far(settings, ctx.obj):
        work_far(settings, options, registry, listener)
        return
    with database(settings, writable=True, guarded=True) as dsn:
        names = ", ".join(options.queues)
        log.info("the worker is starting: queues %s, %s at once", names, count_of(options.concurrency, "task"))
        serve(dsn, settings, work=options, registry=registry, health=listener)


def chosen_queues(settings: Settings, given: str | None) -> Sequence[str]:
    if given is not None:
        return [name.strip() for name in given.split(",") if name.strip()]
    if settings.worker_queues:
        return settings.worker_queues
    default = default_queue(settings)
    return [default] if default else []


def make_door(settings: Settings, handlers: list[str] | None, host: str | None, port: int | None) -> Door:
    registry = load_registry(settings, handlers)
    known = registry.queues() if handlers or settings.handlers else None
    catalog = load_catalog(settings, QueueRules(known, default_queue(settings), is_open=True))
    return Door(open_door(settings, host, port), catalog)


def serve(
    dsn: str,
    settings: Settings,
    *,
    orchestrate: bool = False,
    work: WorkerOptions | None = None,
    registry: Registry | None = None,
    door: Door | None = None,
    health: socket.socket | None = None,
    greeting: str = "",
    reloader: Reloader | None = None,
) -> None:
    """Until a signal, until a role fails, or until a file was edited that needs a new process."""

    async def run() -> None:
        stop = stop_on_signals()
        async with AsyncExitStack() as stack:
            roles = fleet(dsn, settings, orchestrate=orchestrate, work=work, registry=registry)
            running = await stack.enter_async_context(roles)
            if door is not None and registry is not None:
                app = await stack.enter_async_context(serving(dsn, settings, running, door, registry))
                if reloader is not None:
                    reloader.on_change = partial(sync_schedules, app)
            await stack.enter_async_context(answering(running.worker, health))
            tune_garbage_collection()
            if greeting:
                typer.echo(greeting)
            async with background(reloader.run(stop)) if reloader is not None else nullcontext():
                await until_stopped(running, stop)

    asyncio.run(run())
    log.info("stopped")
