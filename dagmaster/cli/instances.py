"""Workers, orchestrators, handlers and queues."""

from typing import Annotated

import typer
from rich.markup import escape

from dagmaster.cli.backend import Row, backend_of
from dagmaster.cli.columns import Listing
from dagmaster.cli.failures import tell
from dagmaster.cli.options import Actor, JsonOutput, begin
from dagmaster.cli.output import as_records, between, console, count_of, duration, print_json, print_or_tell
from dagmaster.errors import Invalid
from dagmaster.ids import WorkerId
from dagmaster.service.contract import Service, WorkerCommand

app = typer.Typer(add_completion=False)
fleet = typer.Typer(name="workers", add_completion=False)
app.add_typer(fleet)

SHOWN_WORKERS = 100
MANY = 100_000

Workers = Annotated[list[str] | None, typer.Argument(metavar="WORKER", help="Worker ids.")]
Everyone = Annotated[bool, typer.Option("--all", help="All active workers.")]


@fleet.callback(invoke_without_command=True)
def workers(
    ctx: typer.Context,
    everyone: Annotated[bool, typer.Option("--all", help="Include stopped and lost instances.")] = False,
    as_json: JsonOutput = False,
) -> None:
    """List workers and orchestrators; drain or stop workers.

    \b
    Examples:
      dagmaster workers --all
      dagmaster workers drain 247932566985999695
    """
    if ctx.invoked_subcommand is not None:
        return
    backend = backend_of(ctx, begin(ctx))
    orchestrators = [row for row in backend.orchestrators() if everyone or row["status"] == "running"]
    workers = backend.workers(status=None if everyone else "active", limit=SHOWN_WORKERS)
    if as_json:
        print_json({"orchestrators": as_records(orchestrators), "workers": as_records(workers)})
        return
    if not orchestrators and not workers:
        tell("no orchestrators or workers are running")
        return
    listing = Listing(("ROLE", "ID", "STATUS", "HOST", "PID", "LAST BEAT"), note="WORK", folds=("HOST",))
    for row in orchestrators:
        work = count_of(row["jobs_owned"], "job")
        listing.add("orchestrator", *_common(row, "orchestrator_id", "heartbeat_at"), note=work)
    for row in workers:
        listing.add("worker", *_common(row, "worker_id", "last_heartbeat"), note=escape(_work_of(row)))
    listing.print(console())


def _work_of(worker: Row) -> str:
    slots = f"{worker['running_tasks']} of {worker['concurrency']} running"
    stuck = f" ({len(worker['stuck_tasks'])} stuck)" if worker["stuck_tasks"] else ""
    done = f"{worker['tasks_completed']} completed, {worker['tasks_failed']} failed"
    return f"{slots}{stuck}, {done} of {', '.join(worker['queues'])}"


def _common(worker: Row, name: str, beat: str) -> list[str]:
    ago = f"{duration(between(worker[beat], None))} ago" if worker[beat] else ""
    is_asked = worker["status"] == "active" and worker["wanted"] != "run"
    status = f"{worker['status']}, {worker['wanted']} requested" if is_asked else worker["status"]
    return [worker[name], status, escape(worker["hostname"]), str(worker["pid"]), ago]


def _add_command(command: WorkerCommand, help: str) -> None:
    @fleet.command(command, help=help)
    def control(
        ctx: typer.Context,
        workers: Workers = None,
        everyone: Everyone = False,
        actor: Actor = None,
        as_json: JsonOutput = False,
    ) -> None:
        if bool(workers) is everyone:
            raise Invalid("name workers, or use --all; `dagmaster workers` lists them")
        backend = backend_of(ctx, begin(ctx))
        if everyone:
            workers = [worker["worker_id"] for worker in backend.workers(status="active", limit=MANY)]

        async def send(service: Service) -> dict[str, str]:
            return {name: await service.control_worker(WorkerId(name), command) for name in workers or ()}

        requested = backend.call(send, actor=actor)
        if as_json:
            print_json([{"worker_id": worker_id, "wanted": state} for worker_id, state in requested.items()])
            return
        if not requested:
            tell("no active workers")
        for worker_id in requested:
            typer.echo(f"Sent {command} to worker {worker_id}")


_add_command(
    "drain",
    help="""Drain workers: no new tasks; running tasks may finish.

    \b
    Examples:
      dagmaster workers drain 247932566985999695
      dagmaster workers drain --all
    """,
)
_add_command(
    "stop",
    help="""Stop workers, as SIGTERM does.

    They finish the tasks they can within the grace period and give back the
    others.

    \b
    Examples:
      dagmaster workers stop 247932566985999695
    """,
)
_add_command(
    "resume",
    help="""Resume drained workers.

    \b
    Examples:
      dagmaster workers resume --all
    """,
)


@app.command()
def handlers(ctx: typer.Context, as_json: JsonOutput = False) -> None:
    """List the registered handlers.

    Includes the workers that run each handler now. Tasks of a handler without
    a worker wait.

    \b
    Examples:
      dagmaster handlers --json
    """
    rows = backend_of(ctx, begin(ctx)).handlers()
    if print_or_tell(rows, "no handlers are registered; start a worker with `dagmaster worker`", as_json=as_json):
        return
    listing = Listing(("HANDLER", "QUEUE", "TIMEOUT", "RETRIES", "WORKERS"), folds=("WORKERS", "HANDLER", "QUEUE"))
    for row in rows:
        timeout = duration(row["timeout_seconds"]) if row["timeout_seconds"] else ""
        retries = str(row["retry"]["max_attempts"]) if row["retry"] else ""
        workers = ", ".join(row["workers"][:3]) or "none"
        more = f" and {len(row['workers']) - 3} more" if len(row["workers"]) > 3 else ""
        listing.add(escape(row["name"]), escape(row["queue"] or ""), timeout, retries, workers + more)
    listing.print(console())


@app.command()
def queues(ctx: typer.Context, as_json: JsonOutput = False) -> None:
    """Show the number of tasks in each queue.

    \b
    Examples:
      dagmaster queues --json
    """
    rows = [
        {
            "queue": row["queue"],
            "waiting": row["depth"],
            "held": row["held"],
            "running": row["running"],
            "oldest_dispatched_at": row["oldest_dispatched_at"],
        }
        for row in backend_of(ctx, begin(ctx)).queues()
        if row["depth"] or row["held"] or row["running"]
    ]
    if print_or_tell(rows, "no tasks are waiting or running", as_json=as_json):
        return
    listing = Listing(("QUEUE", "WAITING", "RUNNING", "OLDEST"), folds=("QUEUE",))
    for row in rows:
        oldest = row["oldest_dispatched_at"]
        waits = duration(between(oldest, None)) if oldest else ""
        listing.add(escape(row["queue"]), str(row["waiting"]), str(row["running"]), waits)
    listing.print(console())
