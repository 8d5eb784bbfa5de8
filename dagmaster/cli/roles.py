"""The processes that serve: everything in one, or a role each."""

from typing import Annotated

import typer

from dagmaster.cli.options import Concurrency, Handlers, Host, Port, begin

Queues = Annotated[
    str | None, typer.Option("--queues", metavar="A,B", help="The queues to take tasks from; else of the settings.")
]

HealthPort = Annotated[
    int | None,
    typer.Option("--health-port", metavar="PORT", help="Answer /health, /livez and /readyz there.", min=0, max=65535),
]

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
    from dagmaster.cli.serve import serve_dev

    serve_dev(begin(ctx, quiet=False), handlers, concurrency, host, port, reload=reload)


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
    from dagmaster.cli.serve import ApiArguments, WorkerArguments, serve_orchestrator

    served = ApiArguments(host, port) if with_api else None
    worked = WorkerArguments(queues, concurrency) if with_worker else None
    serve_orchestrator(begin(ctx, quiet=False), handlers, api=served, worker=worked)


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
    from dagmaster.cli.serve import ApiArguments, serve_api

    serve_api(begin(ctx, quiet=False), handlers, ApiArguments(host, port))


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
    from dagmaster.cli.serve import WorkerArguments, serve_worker

    serve_worker(ctx, begin(ctx, quiet=False), handlers, WorkerArguments(queues, concurrency), health_port)
