"""Check the invariants of jobs and the health of the database, for `dagmaster doctor`."""

import getpass
from dataclasses import asdict

from rich.console import Console
from rich.markup import escape

from dagmaster.cli.columns import Listing
from dagmaster.cli.failures import DONE, JOB_FAILED
from dagmaster.cli.output import as_record, as_records, console, dump, print_json
from dagmaster.cli.sessions import run_in_session
from dagmaster.service.doctor import doctor_limits
from dagmaster.settings import Settings
from dagmaster.store.connect import Connection
from dagmaster.store.doctor import CHECKS, MAX_FOUND, Finding, Severity, examine
from dagmaster.store.health import Point, State, examine_database

STYLES = {State.OK: ("✓", "green"), State.WARNING: ("!", "yellow"), State.PROBLEM: ("✗", "red")}
WORST_FIRST = [State.PROBLEM, State.WARNING, State.OK]
EXAMPLES_SHOWN = 5
MANY_LINES = 20  # enough for every sentence about the database


def check_up(settings: Settings, *, repair: bool, days: float, as_json: bool) -> int:
    """The exit code."""

    async def look(conn: Connection) -> tuple[list[Finding], list[Point]]:
        findings = await examine(conn, repair=repair, actor=getpass.getuser(), limits=doctor_limits(settings, days))
        return findings, await examine_database(conn)

    findings, points = run_in_session(settings, look)
    if as_json:
        records = [
            {**asdict(finding), "examples": as_records(finding.examples), "is_open": finding.is_open}
            for finding in findings
        ]
        print_json({"findings": records, "database": [asdict(point) for point in points]})
    else:
        _show(console(), findings, points)
    is_broken = any(finding.is_open and finding.severity is Severity.PROBLEM for finding in findings)
    return JOB_FAILED if is_broken else DONE


def _show(screen: Console, findings: list[Finding], points: list[Point]) -> None:
    for finding in sorted(findings, key=lambda finding: (not finding.is_open, finding.severity)):
        _show_finding(screen, finding)
    if not findings:
        screen.print(f"[green]✓[/] all {len(CHECKS)} consistency checks passed")
    listing = Listing(("", "DATABASE"), note="", note_lines=MANY_LINES)
    for point in sorted(points, key=lambda point: WORST_FIRST.index(point.state)):
        symbol, style = STYLES[point.state]
        listing.add(f"[{style}]{symbol}[/]", point.name, note=escape(point.sentence))
    screen.print()
    listing.print(screen)


def _show_finding(screen: Console, finding: Finding) -> None:
    symbol, style = STYLES[State(finding.severity) if finding.is_open else State.OK]
    count = f"{finding.count}{'+' if finding.count == MAX_FOUND else ''}"
    repaired = f", {finding.repaired} repaired" if finding.repaired else ""
    screen.print(f"[{style}]{symbol}[/] {count} {finding.title}{repaired}")
    if finding.is_open:
        screen.print(f"  {escape(finding.meaning)}")
    for row in finding.examples[:EXAMPLES_SHOWN]:
        screen.print(f"  [dim]{escape(dump(as_record(row), lines=False))}[/]", soft_wrap=True)
    if finding.count > EXAMPLES_SHOWN:
        screen.print("  [dim]…[/]")
