"""Is everything as it must be?"""

from typing import Annotated

import typer

from dagmaster.cli.options import JsonOutput, begin

app = typer.Typer(add_completion=False)


@app.command()
def doctor(
    ctx: typer.Context,
    repair: Annotated[bool, typer.Option("--repair", help="Put right what can be put right safely.")] = False,
    days: Annotated[float, typer.Option(min=0, help="How many days back jobs are looked at.")] = 1.0,
    as_json: JsonOutput = False,
) -> None:
    """Check the rules that must hold for all jobs, and the health of the database.

    The exit code is 1 when a rule is broken and was not repaired.

    \b
    For example:
      dagmaster doctor --repair
    """
    from dagmaster.cli.checkup import check_up

    raise typer.Exit(check_up(begin(ctx), repair=repair, days=days, as_json=as_json))
