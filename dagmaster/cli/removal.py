"""Remove jobs that are older than their retention, for `dagmaster prune`."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import typer
from rich.markup import escape

from dagmaster.cli.columns import Listing
from dagmaster.cli.failures import tell
from dagmaster.cli.output import at_local_time, console, count_of, print_json, print_or_tell
from dagmaster.cli.sessions import run_in_session
from dagmaster.errors import Misconfigured
from dagmaster.settings import Settings
from dagmaster.store.archive import Archive
from dagmaster.store.connect import Connection
from dagmaster.store.retention import Limits, Removed, note_removal, preview, read_limits, remove_old
from dagmaster.tasklogs.factory import remover


@dataclass(frozen=True, slots=True)
class PruneArguments:
    days: float | None
    workflow: str | None
    archive: Path | None
    actor: str


def prune_jobs(settings: Settings, arguments: PruneArguments, *, dry_run: bool, as_json: bool) -> None:
    overall = arguments.days or settings.retention_days
    folder = arguments.archive or settings.archive_dir
    archive = Archive(folder.expanduser()) if folder and not dry_run else None

    async def look(conn: Connection) -> list[dict[str, Any]]:
        return await preview(conn, await _limits(conn, overall, arguments.workflow))

    async def remove(conn: Connection) -> Removed:
        limits = await _limits(conn, overall, arguments.workflow)
        show = None if as_json else _show_progress
        export = archive.export if archive else None
        removed = await remove_old(conn, limits, export=export, forget=remover(settings), on_progress=show)
        await note_removal(conn, removed, actor=arguments.actor, source_app="cli")
        return removed

    if dry_run:
        _print_preview(run_in_session(settings, look), as_json=as_json)
    else:
        _print_removed(run_in_session(settings, remove), folder, as_json=as_json)


async def _limits(conn: Connection, days: float | None, workflow_id: str | None) -> Limits:
    limits = await read_limits(conn, days, workflow_id)
    if limits.least_days is None:
        raise Misconfigured(
            "no retention period is set: use --days, DAGMASTER_RETENTION_DAYS, or retention_days in a workflow"
        )
    return limits


def _show_progress(removed: Removed) -> None:
    screen = console(stderr=True)
    if screen.is_terminal:
        screen.print(f"{count_of(removed.jobs, 'job')} removed", end="\r")


def _print_preview(rows: Sequence[Mapping[str, Any]], *, as_json: bool) -> None:
    if print_or_tell(rows, "no jobs are old enough to remove", as_json=as_json):
        return
    listing = Listing(("WORKFLOW", "JOBS", "NODES", "EVENTS", "OLDEST"), folds=("WORKFLOW",))
    for row in rows:
        oldest = at_local_time(row["oldest_completed_at"])
        counts = [f"{row[name]:,}" for name in ("jobs", "nodes", "events")]
        listing.add(escape(row["workflow_id"]), *counts, oldest)
    listing.print(console())
    tell(f"{count_of(sum(row['jobs'] for row in rows), 'job')} would be removed")


def _print_removed(removed: Removed, folder: Path | None, *, as_json: bool) -> None:
    if as_json:
        print_json(asdict(removed))
        return
    parts = [
        count_of(removed.jobs, "job"),
        count_of(removed.nodes, "node"),
        count_of(removed.events, "event"),
        count_of(removed.definitions, "definition"),
        *([count_of(removed.cached_results, "cached result")] if removed.cached_results else ()),
    ]
    days = f", and {count_of(removed.event_days, 'whole day')} of events" if removed.event_days else ""
    typer.echo(f"removed {', '.join(parts)}{days}")
    if folder is not None and removed.jobs:
        typer.echo(f"archived in {folder}")
