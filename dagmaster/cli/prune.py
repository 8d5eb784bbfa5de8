"""Remove finished jobs that are old enough."""

from pathlib import Path
from typing import Annotated

import typer

from dagmaster.cli.options import JsonOutput, begin

app = typer.Typer(add_completion=False)


@app.command()
def prune(
    ctx: typer.Context,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    days: Annotated[
        float | None,
        typer.Option(help="Instead of the setting retention_days; a workflow's own still wins.", min=0.001),
    ] = None,
    workflow: Annotated[str | None, typer.Option(metavar="ID", help="Only jobs of this workflow.")] = None,
    archive: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep them as Parquet files here; else as the settings say.")
    ] = None,
    actor: Annotated[str, typer.Option("--by", metavar="WHO", help="Who does it, for the timeline.")] = "cli",
    as_json: JsonOutput = False,
) -> None:
    """Remove finished jobs that are older than their retention.

    Their nodes, results, events and logs go with them. Jobs that run are never touched.

    \b
    For example:
      dagmaster prune --days 90 --dry-run
      dagmaster prune --days 90 --archive /backup/jobs
    """
    from dagmaster.cli.removal import PruneArguments, prune_jobs

    prune_jobs(begin(ctx), PruneArguments(days, workflow, archive, actor), dry_run=dry_run, as_json=as_json)
