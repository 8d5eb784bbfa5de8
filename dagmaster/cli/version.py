"""The version."""

import typer

from dagmaster import __version__
from dagmaster.cli.options import JsonOutput
from dagmaster.cli.output import print_json

app = typer.Typer(add_completion=False)


@app.command()
def version(as_json: JsonOutput = False) -> None:
    """Show the version.

    \b
    Examples:
      dagmaster version
    """
    if as_json:
        print_json({"version": __version__})
    else:
        typer.echo(f"dagmaster {__version__}")
