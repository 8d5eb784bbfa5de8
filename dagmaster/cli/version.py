"""The version."""

import typer

from dagmaster import __version__
from dagmaster.cli.options import JsonOutput
from dagmaster.cli.output import print_result

app = typer.Typer(add_completion=False)


@app.command()
def version(as_json: JsonOutput = False) -> None:
    """Show the version.

    \b
    Examples:
      dagmaster version
    """
    print_result({"version": __version__}, f"dagmaster {__version__}", as_json=as_json)
