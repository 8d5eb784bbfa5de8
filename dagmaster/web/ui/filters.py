"""Format values for pages."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import orjson
from markupsafe import Markup, escape

from dagmaster.model.durations import write_duration
from dagmaster.model.redact import redact

SIZES: Final = ("B", "kB", "MB", "GB", "TB")
MAX_TREE: Final = 200_000  # characters
MAX_DEPTH: Final = 40
EXACT_TIME: Final = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) UTC")
STEPS: Final = ((60, 1, "s"), (3600, 60, "min"), (86400, 3600, "h"), (float("inf"), 86400, "d"))


def duration(seconds: float | None) -> str:
    return "–" if seconds is None else write_duration(seconds)


def ago(then: datetime | str | None) -> Markup:
    """How long ago, with the exact time as a tooltip; scripts keep it up to date."""
    return _written("ago", then, since)


def since(when: datetime, now: datetime | None = None) -> str:
    seconds = ((now or datetime.now(UTC)) - when).total_seconds()
    size = abs(seconds)
    if size < 2:
        return "now"
    text = next(f"{int(size // step)} {unit}" for limit, step, unit in STEPS if size < limit)
    return f"{text} ago" if seconds > 0 else f"in {text}"


def utc(when: datetime) -> str:
    return f"{when.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def exact(then: datetime | str | None) -> Markup:
    """Date and time; scripts write it in the reader's time zone."""
    return _written("exact", then, utc)


def clock(then: datetime | str | None) -> Markup:
    """The time of day, to the millisecond."""
    return _written("clock", then, clock_text)


def clock_text(when: datetime) -> str:
    return f"{when.astimezone(UTC):%H:%M:%S.%f}"[:-3]


def minute(then: datetime | str | None) -> Markup:
    """The time of day, to the minute."""
    return _written("minute", then, lambda when: f"{when.astimezone(UTC):%H:%M}")


def short(then: datetime | str | None) -> Markup:
    """Day and time of day, for axes."""
    return _written("short", then, lambda when: f"{when.astimezone(UTC):%d %b %H:%M}")


def _written(form: str, then: datetime | str | None, write: Callable[[datetime], str]) -> Markup:
    if then is None:
        return Markup("–")
    when = _time(then)
    return Markup('<time datetime="{}" title="{}" data-time="{}">{}</time>').format(
        when.isoformat(), utc(when), form, write(when)
    )


def number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.2f}"


def percent(value: float) -> str:
    """`67 %`; close to 0 or 100 with a decimal, because a single failure matters."""
    is_whole = value in (0, 100) or 0.5 < value < 99.5
    return f"{value:.0f} %" if is_whole else f"{value:.1f} %"


def plural(count: int, singular: str, plural: str | None = None) -> str:
    """`1 worker`, `3 workers`, `2 children`."""
    return f"{number(count)} {singular if count == 1 else plural or singular + 's'}"


def progress_words(counts: Mapping[str, int], total: int) -> str:
    """`7 of 9 completed, 2 skipped`."""
    endings = [
        f"{number(counts[status])} {status}" for status in ("failed", "cancelled", "skipped") if counts.get(status)
    ]
    return ", ".join([f"{number(counts.get('completed', 0))} of {number(total)} completed", *endings])


def size(count: float | None) -> str:
    """Bytes: `512 B`, `3.4 MB`."""
    if count is None:
        return "–"
    units = iter(SIZES)
    unit = next(units)
    while count >= 1000 and (larger := next(units, None)):
        count, unit = count / 1000, larger
    return f"{count:.0f} {unit}" if count >= 10 or unit == "B" else f"{count:.1f} {unit}"


def share(part: float, total: float) -> float:
    """In percent, for bars."""
    return round(100 * part / total, 3) if total else 0.0


def pretty(value: Any) -> str:
    """Indented JSON."""
    return orjson.dumps(value, default=str, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS).decode()


def data(value: Any) -> Markup:
    """JSON for a script element of type application/json, escaped so that it cannot end the element."""
    text = orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def first_line(text: str | None, limit: int = 200) -> str:
    line = (text or "").strip().partition("\n")[0]
    return line if len(line) <= limit else line[: limit - 1] + "…"


def attributes(values: Mapping[str, Any]) -> Markup:
    return Markup(" ").join(Markup('{}="{}"').format(name, escape(value)) for name, value in values.items())


def prose(text: str) -> Markup:
    """Sentences of the engine: names in backticks become code, and exact times follow the reader's time zone."""
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if place % 2 else with_times(part)
        for place, part in enumerate(text.split("`"))
    )


def with_times(text: str) -> Markup:
    """Exact times in a sentence follow the reader's time zone."""
    return Markup("").join(
        _exact_or_text(part) if place % 2 else escape(part) for place, part in enumerate(EXACT_TIME.split(text))
    )


def _exact_or_text(written: str) -> Markup:
    """The error of a handler, which is part of some sentences, may name a day that does not exist."""
    try:
        return exact(f"{written}+00:00")
    except ValueError:
        return escape(f"{written} UTC")


def _time(value: datetime | str) -> datetime:
    return datetime.fromisoformat(value) if isinstance(value, str) else value


@dataclass(frozen=True, slots=True)
class Value:
    """JSON without secrets. `is_tree` is false if the value is too large or too deep; then `text` may be cut."""

    value: Any
    text: str
    is_tree: bool
    is_cut: bool

    @property
    def is_empty(self) -> bool:
        return self.value in (None, {}, [], "")


def value_of(value: Any) -> Value:
    # Pretty printing recurses once per level, so a value that is too deep is not shown.
    if is_deeper(value, MAX_DEPTH):
        return Value(None, f"nested deeper than {MAX_DEPTH} levels; the API returns it", is_tree=False, is_cut=True)
    visible = redact(value)
    text = pretty(visible)
    is_large = len(text) > MAX_TREE
    return Value(visible, text[:MAX_TREE], is_tree=not is_large, is_cut=is_large)


def is_deeper(value: Any, depth: int) -> bool:
    if not isinstance(value, Mapping | list | tuple):
        return False
    inner = value.values() if isinstance(value, Mapping) else value
    return depth == 0 or any(is_deeper(member, depth - 1) for member in inner)


FILTERS: Final = {
    "ago": ago,
    "attributes": attributes,
    "clock": clock,
    "data": data,
    "duration": duration,
    "exact": exact,
    "first_line": first_line,
    "number": number,
    "percent": percent,
    "plural": plural,
    "pretty": pretty,
    "progress_words": progress_words,
    "prose": prose,
    "with_times": with_times,
    "size": size,
    "utc": utc,
}
