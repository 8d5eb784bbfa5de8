"""The cache of task results."""

from typing import Annotated

import typer

from dagmaster.cli.backend import backend_of
from dagmaster.cli.options import Actor, JsonOutput, begin
from dagmaster.cli.output import count_of, print_result

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
    actor: Actor = None,
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
    print_result({"handler": handler, "removed": removed}, f"{count_of(removed, 'result')} removed", as_json=as_json)
