"""Schedules: list and control them, and backfill past times."""

from dataclasses import asdict
from datetime import datetime
from typing import Annotated

import typer
from rich.markup import escape

from dagmaster.cli.backend import Row, backend_of
from dagmaster.cli.columns import Listing
from dagmaster.cli.options import Actor, Handlers, JsonOutput, begin
from dagmaster.cli.output import at_local_time, console, count_of, print_or_tell, print_result
from dagmaster.errors import Invalid
from dagmaster.ids import ScheduleId
from dagmaster.service.contract import BackfillRequest, BackfillResult, ScheduleCommand

app = typer.Typer(add_completion=False)
group = typer.Typer(name="schedules", add_completion=False)
app.add_typer(group)

Schedule = Annotated[str, typer.Argument(metavar="SCHEDULE", help="Schedule id; the same as the workflow id.")]


@group.callback(invoke_without_command=True)
def schedules(ctx: typer.Context, as_json: JsonOutput = False) -> None:
    """List, pause, resume, trigger and sync schedules.

    \b
    Examples:
      dagmaster schedules
      dagmaster schedules pause nightly
    """
    if ctx.invoked_subcommand is None:
        list_all(ctx, as_json)


@group.command("list")
def list_all(ctx: typer.Context, as_json: JsonOutput = False) -> None:
    """List the schedules and their next run times.

    \b
    Examples:
      dagmaster schedules list --json
    """
    schedules = backend_of(ctx, begin(ctx)).schedules()
    if print_or_tell(
        schedules, "no schedules; add `schedule:` to a workflow and run `dagmaster schedules sync`", as_json=as_json
    ):
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
    return backend.call(lambda service: service.control_schedule(ScheduleId(schedule_id), command), actor=actor)


@group.command()
def pause(ctx: typer.Context, schedule_id: Schedule, actor: Actor = None, as_json: JsonOutput = False) -> None:
    """Pause a schedule.

    Running jobs are not affected.

    \b
    Examples:
      dagmaster schedules pause nightly --by ada
    """
    schedule = _control(ctx, schedule_id, "pause", actor)
    print_result(schedule, f"Paused schedule {schedule_id}", as_json=as_json)


@group.command()
def resume(ctx: typer.Context, schedule_id: Schedule, actor: Actor = None, as_json: JsonOutput = False) -> None:
    """Resume a paused schedule.

    It continues with its next future time. To run the times that it missed,
    use `dagmaster backfill`.

    \b
    Examples:
      dagmaster schedules resume nightly
    """
    schedule = _control(ctx, schedule_id, "resume", actor)
    done = f"Resumed schedule {schedule_id}; next run at {at_local_time(schedule['next_at'])}"
    print_result(schedule, done, as_json=as_json)


@group.command()
def trigger(ctx: typer.Context, schedule_id: Schedule, actor: Actor = None, as_json: JsonOutput = False) -> None:
    """Start a job now, as the schedule would.

    Prints the job id. Works for paused schedules too.

    \b
    Examples:
      dagmaster schedules trigger nightly
    """
    backend = backend_of(ctx, begin(ctx))
    triggered = backend.call(lambda service: service.trigger_schedule(ScheduleId(schedule_id)), actor=actor)
    print_result(asdict(triggered), str(triggered.job_id), as_json=as_json)


@group.command()
def sync(
    ctx: typer.Context,
    prune: Annotated[
        bool, typer.Option("--prune", help="Remove schedules whose workflows are not in the folder.")
    ] = False,
    handlers: Handlers = None,
    actor: Actor = None,
    as_json: JsonOutput = False,
) -> None:
    """Update the schedules from the workflow files.

    Servers do this when they start and when they reload workflows. Paused
    schedules stay paused. Schedules of workflows that are not in the folder
    may belong to another server: only --prune removes them.

    \b
    Examples:
      dagmaster schedules sync
      dagmaster schedules sync --prune
    """
    synced = backend_of(ctx, begin(ctx)).sync_schedules(handlers or (), prune=prune, actor=actor)
    lines = [f"{change} {name}" for change in ("added", "changed", "removed") for name in synced[change]]
    print_result(synced, "\n".join(lines) or "no changes", as_json=as_json)


@app.command()
def backfill(
    ctx: typer.Context,
    workflow: Annotated[str, typer.Argument(metavar="WORKFLOW", help="Id of a workflow that has a schedule.")],
    start: Annotated[str, typer.Option("--from", metavar="TIME", help="Start date or time, inclusive.")],
    end: Annotated[str, typer.Option("--to", metavar="TIME", help="End date or time, exclusive.")],
    most: Annotated[
        int, typer.Option("--max", metavar="N", help="Maximum number of jobs to start.", min=1, max=1000)
    ] = 1000,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be started.")] = False,
    actor: Actor = None,
    as_json: JsonOutput = False,
) -> None:
    """Start a schedule's jobs for a period in the past.

    Each scheduled time gets one job: times that already have a job are left
    out. The oldest come first; after --max, repeat the command to continue.
    Times without an offset are in the schedule's timezone.

    \b
    Examples:
      dagmaster backfill nightly --from 2026-01-01 --to 2026-02-01 --dry-run
      dagmaster backfill nightly --from 2026-01-01 --to 2026-02-01 --max 10
    """
    request = BackfillRequest(_time(start, "--from"), _time(end, "--to"), most, dry_run)
    backend = backend_of(ctx, begin(ctx))
    result = backend.call(lambda service: service.backfill_schedule(ScheduleId(workflow), request), actor=actor)
    record = {**asdict(result), "job_ids": [str(job_id) for job_id in result.job_ids]}
    print_result(record, _sum_up(result, dry_run=dry_run), as_json=as_json)


def _time(text: str, option: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise Invalid(
            f"{option} must be a date or time such as 2026-01-31 or 2026-01-31T06:00:00Z, not {text!r}"
        ) from None


def _sum_up(result: BackfillResult, *, dry_run: bool) -> str:
    existing = f"{result.existing:,} already existed"
    if dry_run:
        return f"{count_of(result.left, 'job')} would be submitted, {existing}"
    left = f", {result.left:,} remaining" if result.left else ""
    return f"{count_of(result.submitted, 'job')} submitted, {existing}{left}"
