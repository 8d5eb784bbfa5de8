"""Explain why a job is not running."""

from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from dagmaster.cli.backend import backend_of, find_job
from dagmaster.cli.options import JobReference, JsonOutput, begin
from dagmaster.cli.output import console, count_of, print_for_reading, print_json

SHOWN_NODES = 20

app = typer.Typer(add_completion=False)


@app.command()
def explain(
    ctx: typer.Context,
    job: JobReference,
    node_id: Annotated[str | None, typer.Argument(metavar="NODE", help="Node id.")] = None,
    as_json: JsonOutput = False,
) -> None:
    """Explain why a job or a node is not running.

    \b
    Examples:
      dagmaster explain last
      dagmaster explain 247845805292758904 merge
    """
    backend = backend_of(ctx, begin(ctx))
    explanation = backend.explain(find_job(backend, job), node_id)
    if as_json:
        print_json(asdict(explanation))
        return
    screen = console()
    screen.print(escape(explanation.sentence))
    _print_groups(screen, explanation.data.get("stands", []))
    screen.print()
    for name, value in explanation.data.items():
        if name not in ("stands", "also") and value not in (None, [], {}):
            screen.print(f"[dim]{escape(name):<18}[/]", end="")
            _print_value(screen, value)
    for reason in explanation.data["also"]:
        if "text" in reason:  # Otherwise it was shown above.
            screen.print(f"[dim]{'also':<18}[/]{escape(reason['text'])}", soft_wrap=True)


def _print_groups(screen: Console, stands: list[dict[str, Any]]) -> None:
    """A line for each waiting node, or for the children of a fan-out that wait for the same reason."""
    for group in stands[:SHOWN_NODES]:
        more = f" [dim](and {count_of(group['count'] - 1, 'other')} of {escape(group['node_id'])})[/]"
        screen.print(f"  {escape(group['sentence'])}{more if group['count'] > 1 else ''}")
    if len(stands) > SHOWN_NODES:
        screen.print(f"  [dim]and {count_of(len(stands) - SHOWN_NODES, 'more reason')}: see --json[/]")


def _print_value(screen: Console, value: Any) -> None:
    if isinstance(value, dict | list):
        print_for_reading(screen, value)
    else:
        screen.print(escape(str(value)), soft_wrap=True)
