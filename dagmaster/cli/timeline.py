"""The timeline of a job."""

from collections.abc import Mapping
from datetime import date
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from dagmaster.cli.backend import backend_of, find_job
from dagmaster.cli.options import JobReference, JsonOutput, begin
from dagmaster.cli.output import as_record, console, dump
from dagmaster.model.states import EventStatus
from dagmaster.model.timeline import describe, event_types

STYLES = {EventStatus.SUCCESS: "green", EventStatus.FAILURE: "red", EventStatus.WARNING: "yellow"}

app = typer.Typer(add_completion=False)


@app.command()
def timeline(
    ctx: typer.Context,
    job: JobReference,
    node: Annotated[str | None, typer.Option(metavar="NODE", help="Only events of this node.")] = None,
    types: Annotated[str | None, typer.Option("--type", metavar="A,B", help="Only events of these types.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow until the job ends.")] = False,
    as_json: JsonOutput = False,
) -> None:
    """Show the events of a job in order.

    With --json, each line is one event.

    \b
    Examples:
      dagmaster timeline last --node crunch__17
      dagmaster timeline 247845805292758904 --type node_failed,node_retrying
    """
    backend = backend_of(ctx, begin(ctx))
    selected = event_types(types)
    printer = Printer(console(), as_json=as_json)
    backend.events(find_job(backend, job), node, selected, printer.print, follow=follow)


class Printer:
    def __init__(self, screen: Console, *, as_json: bool) -> None:
        self._screen = screen
        self._as_json = as_json
        self._day: date | None = None

    def print(self, event: Mapping[str, Any]) -> None:
        if self._as_json:
            typer.echo(dump(as_record(event), lines=False))
            return
        at = event["created_at"].astimezone()
        if at.date() != self._day:
            self._day = at.date()
            self._screen.print(f"[dim]{self._day}[/]")
        style = STYLES.get(event["event_status"], "")
        line = Text.assemble(
            (at.strftime("%H:%M:%S.") + f"{at.microsecond // 1000:03d}  ", "dim"),
            (f"{event['node_id']} " if event["node_id"] else "", "bold"),
            (describe(event), style),
        )
        self._screen.print(line, soft_wrap=True)
