"""The cache of task results."""

from typing import Annotated

import typer

from dagmaster.cli.backend import backend_of
from dagmaster.cli.options import JsonOutput, begin
from dagmaster.cli.output import count_of, print_json

app = typer.Typer(name="cache", add_completion=False)


@app.callback()
def cache() -> None:
    """Clear cached task results.

    \b
    Examples:
      dagmaster cache clear --handler tasks:clean
    """


@app.command()
def clear(
    ctx: typer.Context,
    handler: Annotated[
        str | None, typer.Option("--handler", metavar="NAME", help="Only results of this handler.")
    ] = None,
    actor: Annotated[str | None, typer.Option("--by", metavar="NAME", help="Name recorded in the audit log.")] = None,
    as_json: JsonOutput = False,
) -> None:
    """Remove cached results, so that the next tasks run again.

    Completed jobs keep their results.

    \b
    Examples:
      dagmaster cache clear
      dagmaster cache clear --handler tasks:clean
    """
    removed = backend_of(ctx, begin(ctx)).call(lambda service: service.clear_cache(handler), actor=actor)
    if as_json:
        print_json({"handler": handler, "removed": removed})
    else:
        typer.echo(f"{count_of(removed, 'result')} removed")
