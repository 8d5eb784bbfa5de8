"""Output of values: JSON for programs, tables and words for people."""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from textwrap import TextWrapper, indent
from typing import Any

import orjson
import typer
from rich.console import Console
from rich.highlighter import JSONHighlighter

from dagmaster.cli.failures import tell
from dagmaster.model.durations import write_duration
from dagmaster.model.outcome import Outcome
from dagmaster.model.states import JobStatus, NodeStatus

# Without a terminal, nothing is cut off.
PIPE_WIDTH = 10_000
INDENT = "  "
ITEMS_UNCUT = 10
ITEMS_SHOWN = 2

SYMBOLS: Mapping[str, tuple[str, str]] = {
    JobStatus.PENDING: ("○", "dim"),
    NodeStatus.READY: ("○", "cyan"),
    NodeStatus.DISPATCHED: ("◌", "cyan"),
    JobStatus.RUNNING: ("●", "cyan"),
    JobStatus.COMPLETED: ("✓", "green"),
    JobStatus.FAILED: ("✗", "red"),
    JobStatus.CANCELLED: ("✗", "yellow"),
    NodeStatus.SKIPPED: ("–", "dim"),
    Outcome.COMPLETED_WITH_FAILURES: ("✓", "yellow"),
    "retrying": ("↻", "yellow"),
}


def console(*, stderr: bool = False) -> Console:
    screen = Console(stderr=stderr, highlight=False)
    if not screen.is_terminal:
        screen.width = PIPE_WIDTH
    return screen


def plain_console() -> Console:
    """As in a pipe: no colours, no symbols, no truncation."""
    return Console(force_terminal=False, no_color=True, highlight=False, width=PIPE_WIDTH)


def with_symbol(status: str, label: str | None = None) -> str:
    symbol, style = SYMBOLS.get(status, ("·", "dim"))
    return f"[{style}]{symbol} {label or status}[/]"


# JSON


def print_json(value: Any) -> None:
    typer.echo(dump(value))


def dump(value: Any, *, lines: bool = True) -> str:
    options = orjson.OPT_NON_STR_KEYS | orjson.OPT_UTC_Z | (orjson.OPT_INDENT_2 if lines else 0)
    return orjson.dumps(value, default=str, option=options).decode()


def print_result(record: Mapping[str, Any], text: str, *, as_json: bool) -> None:
    """The record for programs, or the text for people."""
    typer.echo(dump(as_record(record)) if as_json else text)


def print_or_tell(rows: Sequence[Mapping[str, Any]], none: str, *, as_json: bool) -> bool:
    """Print rows as JSON, or `none` if there are none. Returns false if the caller must list them."""
    if as_json:
        print_json(as_records(rows))
    elif not rows:
        tell(none)
    return as_json or not rows


def as_record(row: Mapping[str, Any]) -> dict[str, Any]:
    """A database row for programs: ids as strings, times in UTC."""
    return {name: _as_field(name, value) for name, value in row.items()}


def as_records(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [as_record(row) for row in rows]


def _as_field(name: str, value: Any) -> Any:
    match value:
        case int() if name.endswith("_id"):
            return str(value)
        case datetime():
            return value.astimezone(UTC)
        case _:
            return value


def by_node(outputs: Mapping[str, Any] | None, order: Sequence[str]) -> dict[str, Any] | None:
    """The outputs in graph order, which JSON in the database does not keep."""
    if outputs is None:
        return None
    return {name: outputs[name] for name in (*order, *outputs) if name in outputs}


def print_for_reading(screen: Console, value: Any) -> None:
    """Compact JSON: values that fit on one line stay on it, and long lists are cut."""
    screen.print(JSONHighlighter()(for_reading(value, screen.width)), soft_wrap=True)


def for_reading(value: Any, width: int) -> str:
    return _laid_out(_shortened(value), width)


def _laid_out(value: Any, width: int, used: int = 0) -> str:
    """`used` is the width already taken on the first line."""
    line = json.dumps(value, ensure_ascii=False, default=str)
    if used + len(line) <= width or not value or not isinstance(value, dict | list):
        return line
    width -= len(INDENT)
    if isinstance(value, dict):
        names = [f"{json.dumps(name, ensure_ascii=False)}: " for name in value]
        parts = [name + _laid_out(value[key], width, len(name) + 1) for key, name in zip(value, names, strict=True)]
    else:
        parts = [_laid_out(part, width, 1) for part in value]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return opening + indent("\n" + ",\n".join(parts), INDENT) + "\n" + closing


def _shortened(value: Any) -> Any:
    match value:
        case dict():
            return {name: _shortened(part) for name, part in value.items()}
        case list() if len(value) > ITEMS_UNCUT:
            return [*map(_shortened, value[:ITEMS_SHOWN]), f"… and {len(value) - ITEMS_SHOWN:,} more"]
        case list():
            return list(map(_shortened, value))
        case _:
            return value


# Words


def duration(seconds: float | None) -> str:
    return "" if seconds is None else write_duration(seconds)


def between(start: datetime | None, end: datetime | None) -> float | None:
    """Seconds; never negative, because clocks may be adjusted."""
    if start is None:
        return None
    return max(((end or datetime.now(UTC)) - start).total_seconds(), 0.0)


def run_time(job: Mapping[str, Any], now: datetime | None = None) -> float | None:
    """Seconds without pauses, as lists and pages show them; None before the job has started."""
    if job["started_at"] is None:
        return None
    if "duration_seconds" in job:  # computed by the server
        return float(job["duration_seconds"])
    seconds = between(job["started_at"], job["paused_at"] or job["completed_at"] or now) or 0.0
    return max(seconds - float(job["idle_seconds"]), 0.0)


def time_shown(job: Mapping[str, Any], now: datetime) -> float:
    """The run time; of a job that has not started, the time it has waited."""
    seconds = run_time(job, now)
    return (between(job["created_at"], job["completed_at"] or now) or 0.0) if seconds is None else seconds


def at_local_time(at: datetime | None) -> str:
    return at.astimezone().strftime("%Y-%m-%d %H:%M:%S") if at else ""


def first_line(text: str) -> str:
    return text.partition("\n")[0]


def count_of(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def print_fact(name: str, text: str) -> None:
    """A name and its value; a long value is wrapped with an indent."""
    wrapper = TextWrapper(console().width, f"{name:<12}", " " * 12, break_long_words=False, break_on_hyphens=False)
    typer.echo(wrapper.fill(text))


def listed(names: Sequence[str], limit: int = 12) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return (", ".join(names[:limit]) or "none") + more
