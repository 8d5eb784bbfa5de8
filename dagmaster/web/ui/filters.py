"""How values are written on pages."""

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import orjson
from markupsafe import Markup, escape

UNITS: Final = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
SIZES: Final = ("B", "kB", "MB", "GB", "TB")
EXACT_TIME: Final = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) UTC")
STEPS: Final = ((60, 1, "s"), (3600, 60, "min"), (86400, 3600, "h"), (float("inf"), 86400, "d"))


def duration(seconds: float | None) -> str:
    """`850 ms`, `4.2 s`, `3 min 20 s`, `2 h 5 min`, `3 d 4 h`."""
    if seconds is None:
        return "–"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s".replace(".0 s", " s")
    rest = round(seconds)
    said: list[tuple[int, str]] = []
    for unit, size in UNITS:
        count, rest = divmod(rest, size)
        if count or said:
            said.append((count, unit))
    return " ".join(f"{count} {unit}" for count, unit in said[:2] if count)


def ago(then: datetime | str | None) -> Markup:
    """How long ago, with the exact time for who points at it; scripts keep it up to date."""
    if then is None:
        return Markup("–")
    when = _time(then)
    return Markup('<time datetime="{}" title="{}" data-time="ago">{}</time>').format(
        when.isoformat(), utc(when), since(when)
    )


def since(when: datetime, now: datetime | None = None) -> str:
    seconds = ((now or datetime.now(UTC)) - when).total_seconds()
    size = abs(seconds)
    if size < 2:
        return "now"
    said = next(f"{int(size // step)} {unit}" for limit, step, unit in STEPS if size < limit)
    return f"{said} ago" if seconds > 0 else f"in {said}"


def utc(when: datetime) -> str:
    return f"{when.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def exact(then: datetime | str | None) -> Markup:
    """Date and time; scripts write it in the reader's time zone."""
    return _written("exact", then, utc)


def clock(then: datetime | str | None) -> Markup:
    """The time of day, to the millisecond."""
    return _written("clock", then, lambda when: f"{when.astimezone(UTC):%H:%M:%S.%f}"[:-3])


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


def size(count: float | None) -> str:
    """Bytes: `512 B`, `3.4 MB`."""
    if count is None:
        return "–"
    units = iter(SIZES)
    unit = next(units)
    while count >= 1000 and (larger := next(units, None)):
        count, unit = count / 1000, larger
    return f"{count:.0f} {unit}" if count >= 10 or unit == "B" else f"{count:.1f} {unit}"


def share(part: float, whole: float) -> float:
    """In percent, for bars."""
    return round(100 * part / whole, 3) if whole else 0.0


def pretty(value: Any) -> str:
    """JSON for people."""
    return orjson.dumps(value, default=str, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS).decode()


def data(value: Any) -> Markup:
    """JSON inside of a script element of type application/json: nothing in it ends the element."""
    text = orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def first_line(text: str | None, limit: int = 200) -> str:
    line = (text or "").strip().partition("\n")[0]
    return line if len(line) <= limit else line[: limit - 1] + "…"


def attributes(values: Mapping[str, Any]) -> Markup:
    return Markup(" ").join(Markup('{}="{}"').format(name, escape(value)) for name, value in values.items())


def prose(text: str) -> Markup:
    """What the engine says: names between backticks become code, and exact times follow the reader's zone."""
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if place % 2 else _with_times(part)
        for place, part in enumerate(text.split("`"))
    )


def _with_times(text: str) -> Markup:
    return Markup("").join(
        exact(f"{part}+00:00") if place % 2 else escape(part) for place, part in enumerate(EXACT_TIME.split(text))
    )


def _time(value: datetime | str) -> datetime:
    return datetime.fromisoformat(value) if isinstance(value, str) else value


FILTERS: Final = {
    "ago": ago,
    "attributes": attributes,
    "clock": clock,
    "data": data,
    "duration": duration,
    "exact": exact,
    "first_line": first_line,
    "minute": minute,
    "number": number,
    "prose": prose,
    "pretty": pretty,
    "short": short,
    "size": size,
    "utc": utc,
}
