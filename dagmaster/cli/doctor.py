"""Is everything as it must be?"""

import getpass
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from dagmaster.cli.columns import Listing
from dagmaster.cli.failures import DONE, JOB_FAILED
from dagmaster.cli.options import JsonOutput, begin
from dagmaster.cli.output import as_record, as_records, console, dump, print_json
from dagmaster.cli.sessions import ask
from dagmaster.settings import Settings
from dagmaster.store.connect import Connection
from dagmaster.store.doctor import CHECKS, MAX_FOUND, Finding, Limits, Severity, examine
from dagmaster.store.health import Point, State, examine_database

app = typer.Typer(add_completion=False)

STYLES = {State.OK: ("✓", "green"), State.WARNING: ("!", "yellow"), State.PROBLEM: ("✗", "red")}
WORST_FIRST = [State.PROBLEM, State.WARNING, State.OK]
EXAMPLES_SHOWN = 5
MANY_LINES = 20  # a sentence about the database is never cut


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
    settings = begin(ctx)

    async def look(conn: Connection) -> tuple[list[Finding], list[Point]]:
        found = await examine(conn, repair=repair, actor=getpass.getuser(), limits=limits_of(settings, days))
        return found, await examine_database(conn)

    findings, points = ask(settings, look)
    if as_json:
        print_json({"findings": [_as_json(one) for one in findings], "database": [asdict(point) for point in points]})
    else:
        _show(console(), findings, points)
    is_broken = any(one.is_open and one.severity is Severity.PROBLEM for one in findings)
    raise typer.Exit(JOB_FAILED if is_broken else DONE)


def limits_of(settings: Settings, days: float) -> Limits:
    """Events that retention has removed are not missing."""
    return Limits(
        orphan_seconds=settings.orphan_threshold_seconds,
        worker_lost_seconds=settings.worker_lost_after_seconds,
        days=min(days, settings.retention_days or days),
    )


def _as_json(one: Finding) -> dict[str, Any]:
    return asdict(one) | {"examples": as_records(one.examples), "is_open": one.is_open}


def _show(screen: Console, findings: list[Finding], points: list[Point]) -> None:
    for one in sorted(findings, key=lambda one: (not one.is_open, one.severity)):
        _show_finding(screen, one)
    if not findings:
        screen.print(f"[green]✓[/] every rule holds ({len(CHECKS)} were checked)")
    listing = Listing(("", "DATABASE"), note="", note_lines=MANY_LINES)
    for point in sorted(points, key=lambda point: WORST_FIRST.index(point.state)):
        symbol, style = STYLES[point.state]
        listing.add(f"[{style}]{symbol}[/]", point.name, note=escape(point.sentence))
    screen.print()
    listing.print(screen)


def _show_finding(screen: Console, one: Finding) -> None:
    symbol, style = STYLES[State(one.severity) if one.is_open else State.OK]
    count = f"{one.count}{'+' if one.count == MAX_FOUND else ''}"
    repaired = f", {one.repaired} repaired" if one.repaired else ""
    screen.print(f"[{style}]{symbol}[/] {count} {one.title}{repaired}")
    if one.is_open:
        screen.print(f"  {escape(one.meaning)}")
    for row in one.examples[:EXAMPLES_SHOWN]:
        screen.print(f"  [dim]{escape(dump(as_record(row), lines=False))}[/]", soft_wrap=True)
    if one.count > EXAMPLES_SHOWN:
        screen.print("  [dim]…[/]")
