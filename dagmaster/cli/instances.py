"""Who is at work, and what waits for them."""

from typing import Annotated

import typer
from rich.markup import escape

from dagmaster.cli.backend import Row, backend_of
from dagmaster.cli.failures import tell
from dagmaster.cli.options import JsonOutput, begin
from dagmaster.cli.output import as_records, between, console, in_seconds, print_json, table

app = typer.Typer(add_completion=False)


@app.command()
def workers(
    ctx: typer.Context,
    everyone: Annotated[bool, typer.Option("--all", help="Those too that have stopped or were lost.")] = False,
    as_json: JsonOutput = False,
) -> None:
    """List the workers and orchestrators.

    \b
    For example:
      dagmaster workers --all
    """
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
    listing = table("ROLE", "ID", "STATUS", "HOST", "PID", "LAST BEAT", "WORK")
    for one in orchestrators:
        work = f"{one['jobs_owned']} jobs"
        listing.add_row("orchestrator", *_common(one, "orchestrator_id", "heartbeat_at"), work)
    for one in found:
        work = f"{one['tasks_completed']} completed, {one['tasks_failed']} failed of {', '.join(one['queues'])}"
        listing.add_row("worker", *_common(one, "worker_id", "last_heartbeat"), escape(work))
    console().print(listing)


def _common(one: Row, name: str, beat: str) -> list[str]:
    ago = f"{in_seconds(between(one[beat], None))} ago" if one[beat] else ""
    return [one[name], one["status"], escape(one["hostname"]), str(one["pid"]), ago]


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
    listing = table("QUEUE", "WAITING", "RUNNING", "OLDEST")
    for row in rows:
        oldest = row["oldest_dispatched_at"]
        waits = in_seconds(between(oldest, None)) if oldest else ""
        listing.add_row(escape(row["queue"]), str(row["waiting"]), str(row["running"]), waits)
    console().print(listing)
