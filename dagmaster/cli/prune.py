"""Remove finished jobs after their retention period."""

from pathlib import Path
from typing import Annotated

import typer

from dagmaster.cli.options import JsonOutput, begin

app = typer.Typer(add_completion=False)


@app.command()
def prune(
    ctx: typer.Context,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be removed.")] = False,
    days: Annotated[
        float | None,
        typer.Option(help="Overrides the setting retention_days, but not that of a workflow.", min=0.001),
    ] = None,
    workflow: Annotated[str | None, typer.Option(metavar="ID", help="Only jobs of this workflow.")] = None,
    archive: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Archive jobs as Parquet files here; default: from the settings.")
    ] = None,
    actor: Annotated[str, typer.Option("--by", metavar="NAME", help="Name recorded in the audit log.")] = "cli",
    as_json: JsonOutput = False,
) -> None:
    """Remove finished jobs after their retention period.

    Also removes their nodes, results, events and logs. Unfinished jobs are
    never removed.

    \b
    Examples:
      dagmaster prune --days 90 --dry-run
      dagmaster prune --days 90 --archive /backup/jobs
    """
    from dagmaster.cli.removal import PruneArguments, prune_jobs

    prune_jobs(begin(ctx), PruneArguments(days, workflow, archive, actor), dry_run=dry_run, as_json=as_json)
