"""Who is at work, and what waits for them."""

from typing import Annotated

import typer
from rich.markup import escape

from dagmaster.cli.backend import Row, backend_of
from dagmaster.cli.columns import Listing
from dagmaster.cli.failures import tell
from dagmaster.cli.options import JsonOutput, begin
from dagmaster.cli.output import as_records, between, console, count_of, in_seconds, print_json
from dagmaster.errors import Invalid

app = typer.Typer(add_completion=False)
fleet = typer.Typer(name="workers", add_completion=False)
app.add_typer(fleet)

Workers = Annotated[list[str] | None, typer.Argument(metavar="[WORKER]...", help="The workers' ids.")]
Everyone = Annotated[bool, typer.Option("--all", help="All that are at work.")]
Who = Annotated[str | None, typer.Option("--by", metavar="WHO", help="Who asks for it, for the audit.")]


@fleet.callback(invoke_without_command=True)
def workers(
    ctx: typer.Context,
    everyone: Annotated[bool, typer.Option("--all", help="Those too that have stopped or were lost.")] = False,
    as_json: JsonOutput = False,
) -> None:
    """List the workers and orchestrators; drain or stop workers.

    \b
    For example:
      dagmaster workers --all
      dagmaster workers drain 247932566985999695
    """
    if ctx.invoked_subcommand is not None:
        return
    orchestrators, found = backend_of(ctx, begin(ctx)).instances()
    if not everyone:
        orchestrators = [one for one in orchestrators if one["status"] == "running"]
        found = [one for one in found if one["status"] == "active"]
    if as_json:
        print_json({"orchestrators": as_records(orchestrators), "workers": as_records(found)})
        return
    if not orchestrators and not found:
        tell("no orchestrator and no worker is running")
        return
    listing = Listing(("ROLE", "ID", "STATUS", "HOST", "PID", "LAST BEAT"), note="WORK", folds=("HOST",))
    for one in orchestrators:
        work = count_of(one["jobs_owned"], "job")
        listing.add("orchestrator", *_common(one, "orchestrator_id", "heartbeat_at"), note=work)
    for one in found:
        work = _work_of(one)
        listing.add("worker", *_common(one, "worker_id", "last_heartbeat"), note=escape(work))
    listing.print(console())


def _work_of(one: Row) -> str:
    slots = f"{one['running_tasks']} of {one['concurrency']} running"
    stuck = f" ({len(one['stuck_tasks'])} stuck)" if one["stuck_tasks"] else ""
    done = f"{one['tasks_completed']} completed, {one['tasks_failed']} failed"
    return f"{slots}{stuck}, {done} of {', '.join(one['queues'])}"


def _common(one: Row, name: str, beat: str) -> list[str]:
    ago = f"{in_seconds(between(one[beat], None))} ago" if one[beat] else ""
    is_asked = one["status"] == "active" and one["wanted"] != "run"
    status = f"{one['status']}, to {one['wanted']}" if is_asked else one["status"]
    return [one[name], status, escape(one["hostname"]), str(one["pid"]), ago]


@fleet.command()
def drain(
    ctx: typer.Context,
    workers: Workers = None,
    everyone: Everyone = False,
    actor: Who = None,
    as_json: JsonOutput = False,
) -> None:
    """Give workers no more tasks; what they run may end.

    \b
    For example:
      dagmaster workers drain 247932566985999695
      dagmaster workers drain --all
    """
    _steer(ctx, "drain", workers, actor, everyone=everyone, as_json=as_json)


@fleet.command()
def stop(
    ctx: typer.Context,
    workers: Workers = None,
    everyone: Everyone = False,
    actor: Who = None,
    as_json: JsonOutput = False,
) -> None:
    """Let workers end as after SIGTERM.

    They finish what they can in time, and give back the rest.

    \b
    For example:
      dagmaster workers stop 247932566985999695
    """
    _steer(ctx, "stop", workers, actor, everyone=everyone, as_json=as_json)


@fleet.command()
def resume(
    ctx: typer.Context,
    workers: Workers = None,
    everyone: Everyone = False,
    actor: Who = None,
    as_json: JsonOutput = False,
) -> None:
    """Give drained workers tasks again.

    \b
    For example:
      dagmaster workers resume --all
    """
    _steer(ctx, "resume", workers, actor, everyone=everyone, as_json=as_json)


def _steer(
    ctx: typer.Context, command: str, named: list[str] | None, actor: str | None, *, everyone: bool, as_json: bool
) -> None:
    if bool(named) is everyone:
        raise Invalid("name the workers, or all of them with --all; `dagmaster workers` lists them")
    backend = backend_of(ctx, begin(ctx))
    if everyone:
        named = [one["worker_id"] for one in backend.instances()[1] if one["status"] == "active"]
    wanted = {worker_id: backend.steer_worker(worker_id, command, actor=actor) for worker_id in named or ()}
    if as_json:
        print_json([{"worker_id": worker_id, "wanted": wish} for worker_id, wish in wanted.items()])
        return
    if not wanted:
        tell("no worker is at work")
    for worker_id, wish in wanted.items():
        typer.echo(f"worker {worker_id} is to {wish}")


@app.command()
def handlers(ctx: typer.Context, as_json: JsonOutput = False) -> None:
    """List the handlers that workers have registered.

    With the workers that run them now. A task whose handler nobody runs waits.

    \b
    For example:
      dagmaster handlers --json
    """
    rows = backend_of(ctx, begin(ctx)).handlers()
    if as_json:
        print_json(as_records(rows))
        return
    if not rows:
        tell("no worker has registered a handler yet; start one with `dagmaster worker`")
        return
    listing = Listing(("HANDLER", "QUEUE", "TIMEOUT", "RETRIES", "WORKERS"), folds=("WORKERS", "HANDLER", "QUEUE"))
    for row in rows:
        timeout = in_seconds(row["timeout_seconds"]) if row["timeout_seconds"] else ""
        retries = str(row["retry"]["max_attempts"]) if row["retry"] else ""
        workers = ", ".join(row["workers"][:3]) or "nobody"
        more = f" and {len(row['workers']) - 3} more" if len(row["workers"]) > 3 else ""
        listing.add(escape(row["name"]), escape(row["queue"] or ""), timeout, retries, workers + more)
    listing.print(console())


@app.command()
def queues(ctx: typer.Context, as_json: JsonOutput = False) -> None:
    """Show how much waits in each queue.

    \b
    For example:
      dagmaster queues --json
    """
    rows = backend_of(ctx, begin(ctx)).queues()
    if as_json:
        print_json(as_records(rows))
        return
    if not rows:
        tell("nothing waits and nothing runs")
        return
    listing = Listing(("QUEUE", "WAITING", "RUNNING", "OLDEST"), folds=("QUEUE",))
    for row in rows:
        oldest = row["oldest_dispatched_at"]
        waits = in_seconds(between(oldest, None)) if oldest else ""
        listing.add(escape(row["queue"]), str(row["waiting"]), str(row["running"]), waits)
    listing.print(console())
