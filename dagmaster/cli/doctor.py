"""Check consistency and health."""

from typing import Annotated

import typer

from dagmaster.cli.options import JsonOutput, begin

app = typer.Typer(add_completion=False)


@app.command()
def doctor(
    ctx: typer.Context,
    repair: Annotated[bool, typer.Option("--repair", help="Repair problems that can be repaired safely.")] = False,
    days: Annotated[float, typer.Option(min=0, help="Check jobs of this many past days.")] = 1.0,
    as_json: JsonOutput = False,
) -> None:
    """Check the consistency of jobs and the health of the database.

    The exit code is 1 if a problem remains unrepaired.

    \b
    Examples:
      dagmaster doctor --repair
    """
    from dagmaster.cli.checkup import check_up

    raise typer.Exit(check_up(begin(ctx), repair=repair, days=days, as_json=as_json))
