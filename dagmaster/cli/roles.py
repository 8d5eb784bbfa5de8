"""The long-running processes: one role each, or all in one."""

from typing import Annotated

import typer

from dagmaster.cli.options import Concurrency, Handlers, Host, Port, begin

Queues = Annotated[
    str | None, typer.Option("--queues", metavar="A,B", help="Queues to consume; default: from the settings.")
]

HealthPort = Annotated[
    int | None,
    typer.Option(
        "--health-port", metavar="PORT", help="Serve /health, /livez and /readyz on this port.", min=0, max=65535
    ),
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
        bool, typer.Option("--reload/--no-reload", help="Reload edited workflows, handlers and Python modules.")
    ] = True,
) -> None:
    """Run everything in one process until Ctrl-C.

    Starts an orchestrator, a worker and the HTTP API on the embedded
    PostgreSQL of the data folder. Unfinished jobs resume. Submit jobs in the
    web UI, over HTTP or from a second terminal. Edited workflows are reloaded;
    edited Python restarts the process. Jobs keep the definition they were
    submitted with.

    \b
    Examples:
      dagmaster dev --handlers my_handlers.py
      dagmaster submit hello_world --poll
    """
    from dagmaster.cli.serve import ApiArguments, serve_dev

    serve_dev(begin(ctx, quiet=False), handlers, concurrency, ApiArguments(host, port), reload=reload)


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
    """Run an orchestrator until stopped.

    Any number can share a database. Each owns some of the jobs; when one
    stops, the others take over its jobs.

    \b
    Examples:
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
    """Serve the HTTP API until stopped.

    Without API keys, only this machine can connect. After `dagmaster keys
    create`, --host 0.0.0.0 serves everyone who has a key.

    \b
    Examples:
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
    """Run a worker until stopped.

    On SIGTERM it claims no more tasks, finishes the tasks it can and gives back
    the others. With --url it needs no database, only a server and an API key
    with the role worker.

    \b
    Examples:
      dagmaster worker --queues default,heavy --handlers my_package.handlers
      dagmaster worker --url https://dagmaster.example.com --queues default
    """
    from dagmaster.cli.serve import WorkerArguments, serve_worker

    serve_worker(ctx, begin(ctx, quiet=False), handlers, WorkerArguments(queues, concurrency), health_port)


@app.command()
def gateway(ctx: typer.Context, host: Host = None, port: Port = None) -> None:
    """Serve the partners' gateway until stopped.

    It reads the database with a read-only role, and forwards every change to
    the API at DAGMASTER_URL with DAGMASTER_API_KEY. Until its readiness checks
    pass, it serves only /api/livez and /api/readyz.

    \b
    Examples:
      dagmaster db create-reader gateway
      dagmaster gateway --port 8081
    """
    from dagmaster.cli.gateway_server import serve_gateway

    serve_gateway(begin(ctx, quiet=False), host, port)


@app.command()
def tiles(ctx: typer.Context, host: Host = None, port: Port = None) -> None:
    """Serve the tiles of assets until stopped.

    `dagmaster api` serves them too. A separate process takes no time from the
    API, and the API needs no geospatial libraries: let your proxy send the
    paths below /tiles/ here. Needs the extra serve.

    \b
    Examples:
      dagmaster tiles --port 8082
      dagmaster tiles --host 0.0.0.0 --database-url postgresql://dagmaster@db/dagmaster
    """
    from dagmaster.cli.tiles_server import serve_tiles

    serve_tiles(begin(ctx, quiet=False), host, port)
