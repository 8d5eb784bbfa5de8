"""What starts by itself: look at schedules, steer them, and make up for times gone by."""

from dataclasses import asdict
from datetime import datetime
from typing import Annotated

import typer
from rich.markup import escape

from dagmaster.cli.backend import Row, backend_of
from dagmaster.cli.columns import Listing
from dagmaster.cli.failures import tell
from dagmaster.cli.options import Handlers, JsonOutput, begin
from dagmaster.cli.output import as_record, as_records, at_local_time, console, count_of, print_json
from dagmaster.errors import Invalid
from dagmaster.service.contract import BackfillRequest, BackfillResult, ScheduleCommand

app = typer.Typer(add_completion=False)
group = typer.Typer(name="schedules", add_completion=False)
app.add_typer(group)

ScheduleId = Annotated[str, typer.Argument(metavar="SCHEDULE", help="Its id, which is that of its workflow.")]
Who = Annotated[str | None, typer.Option("--by", metavar="WHO", help="Who asks for it, for the audit.")]


@group.callback(invoke_without_command=True)
def schedules(ctx: typer.Context, as_json: JsonOutput = False) -> None:
    """List the schedules; pause, resume, trigger and sync them.

    \b
    For example:
      dagmaster schedules
      dagmaster schedules pause nightly
    """
    if ctx.invoked_subcommand is None:
        _list(ctx, as_json=as_json)


@group.command("list")
def list_all(ctx: typer.Context, as_json: JsonOutput = False) -> None:
    """List the schedules with their next times.

    \b
    For example:
      dagmaster schedules list --json
    """
    _list(ctx, as_json=as_json)


def _list(ctx: typer.Context, *, as_json: bool) -> None:
    schedules = backend_of(ctx, begin(ctx)).schedules()
    if as_json:
        print_json(as_records(schedules))
        return
    if not schedules:
        tell("no workflow has a schedule; give one a `schedule:` and run `dagmaster schedules sync`")
        return
    titles = ("SCHEDULE", "RULE", "TIMEZONE", "CATCHUP", "STATE", "NEXT", "LAST", "LAST JOB")
    listing = Listing(titles, folds=("SCHEDULE", "RULE"), fixed=2)
    for row in schedules:
        job = f"{row['last_job_id']} {row['last_job_status']}" if row["last_job_id"] else ""
        times = [at_local_time(row[name]) for name in ("next_at", "last_at")]
        where = [escape(row[name]) for name in ("schedule_id", "rule", "timezone", "catchup")]
        listing.add(*where, escape(_state(row)), *times, job)
    listing.print(console())


def _state(schedule: Row) -> str:
    if schedule["paused_at"] is not None:
        return f"paused by {schedule['paused_by']}" if schedule["paused_by"] else "paused"
    return "late" if schedule["is_late"] else "active"


def _control(ctx: typer.Context, schedule_id: str, command: ScheduleCommand, actor: str | None) -> Row:
    backend = backend_of(ctx, begin(ctx))
    return backend.call(lambda service: service.control_schedule(schedule_id, command), actor=actor)


@group.command()
def pause(ctx: typer.Context, schedule_id: ScheduleId, actor: Who = None, as_json: JsonOutput = False) -> None:
    """Let a schedule start nothing more.

    Jobs that run are not touched.

    \b
    For example:
      dagmaster schedules pause nightly --by ada
    """
    schedule = _control(ctx, schedule_id, "pause", actor)
    _show(schedule, f"schedule {schedule_id} is paused", as_json=as_json)


@group.command()
def resume(ctx: typer.Context, schedule_id: ScheduleId, actor: Who = None, as_json: JsonOutput = False) -> None:
    """Let a paused schedule go on.

    It goes on with the next time that is still to come. What fell into the
    pause is not made up for: `dagmaster backfill` does that.

    \b
    For example:
      dagmaster schedules resume nightly
    """
    schedule = _control(ctx, schedule_id, "resume", actor)
    _show(schedule, f"schedule {schedule_id} goes on at {at_local_time(schedule['next_at'])}", as_json=as_json)


@group.command()
def trigger(ctx: typer.Context, schedule_id: ScheduleId, actor: Who = None, as_json: JsonOutput = False) -> None:
    """Start a job now, as the schedule would.

    Prints the job's id. The schedule may be paused.

    \b
    For example:
      dagmaster schedules trigger nightly
    """
    backend = backend_of(ctx, begin(ctx))
    triggered = backend.call(lambda service: service.trigger_schedule(schedule_id), actor=actor)
    _show({**asdict(triggered), "job_id": str(triggered.job_id)}, str(triggered.job_id), as_json=as_json)


@group.command()
def sync(
    ctx: typer.Context,
    prune: Annotated[
        bool, typer.Option("--prune", help="Remove schedules whose workflows are not in the folder.")
    ] = False,
    handlers: Handlers = None,
    actor: Who = None,
    as_json: JsonOutput = False,
) -> None:
    """Make the schedules what the workflows say.

    Servers do so when they start and when they read the workflows again. What
    is paused stays paused. Schedules of workflows that are not in the folder
    may be another server's: only --prune removes them.

    \b
    For example:
      dagmaster schedules sync
      dagmaster schedules sync --prune
    """
    synced = backend_of(ctx, begin(ctx)).sync_schedules(handlers or (), prune=prune, actor=actor)
    lines = [f"{what} {name}" for what in ("added", "changed", "removed") for name in synced[what]]
    _show(synced, "\n".join(lines) or "nothing has changed", as_json=as_json)


@app.command()
def backfill(
    ctx: typer.Context,
    workflow: Annotated[str, typer.Argument(metavar="WORKFLOW", help="The id of a workflow that has a schedule.")],
    start: Annotated[str, typer.Option("--from", metavar="TIME", help="The first day or time.")],
    end: Annotated[str, typer.Option("--to", metavar="TIME", help="Where it ends; not part of it.")],
    most: Annotated[
        int, typer.Option("--max", metavar="N", help="Start at most so many jobs.", min=1, max=1000)
    ] = 1000,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be started.")] = False,
    actor: Who = None,
    as_json: JsonOutput = False,
) -> None:
    """Start the jobs that a schedule would have started.

    Each time has one job: what ran is not run again, whoever started it. The
    oldest come first; with --max another call goes on. Times without an offset
    are in the schedule's timezone.

    \b
    For example:
      dagmaster backfill nightly --from 2026-01-01 --to 2026-02-01 --dry-run
      dagmaster backfill nightly --from 2026-01-01 --to 2026-02-01 --max 10
    """
    request = BackfillRequest(_time(start, "--from"), _time(end, "--to"), most, dry_run)
    backend = backend_of(ctx, begin(ctx))
    result = backend.call(lambda service: service.backfill_schedule(workflow, request), actor=actor)
    record = {**asdict(result), "job_ids": [str(job_id) for job_id in result.job_ids]}
    _show(record, _sum_up(result, dry_run=dry_run), as_json=as_json)


def _time(text: str, option: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise Invalid(f"{option} is a day or a time such as 2026-01-31 or 2026-01-31T06:00:00Z, not {text!r}") from None


def _sum_up(result: BackfillResult, *, dry_run: bool) -> str:
    existing = f"{result.existing:,} were there"
    if dry_run:
        return f"{count_of(result.left, 'job')} would be submitted, {existing}"
    left = f", {result.left:,} are left" if result.left else ""
    return f"{count_of(result.submitted, 'job')} submitted, {existing}{left}"


def _show(record: Row, text: str, *, as_json: bool) -> None:
    if as_json:
        print_json(as_record(record))
    else:
        typer.echo(text)
