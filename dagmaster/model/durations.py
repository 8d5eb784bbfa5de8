"""Read durations such as `90s`, `15m`, `1h30m` and `2d`, write them for people, and read points in time."""

import re
from datetime import datetime
from typing import Final

_FORM: Final = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?", re.ASCII)
_UNITS: Final = (86_400, 3_600, 60, 1)
MAX_DURATION_CHARS: Final = 32


def read_duration(text: str) -> float:
    """The duration in seconds; raises ValueError if the string is not a duration."""
    written = text.replace(" ", "").lower()
    match = _FORM.fullmatch(written) if len(written) <= MAX_DURATION_CHARS else None
    if not written or match is None:
        raise ValueError(f"{text[:MAX_DURATION_CHARS]!r} is not a duration; write for example 90s, 15m, 1h30m or 2d")
    return sum(float(part) * unit for part, unit in zip(match.groups(), _UNITS, strict=True) if part)


def write_duration(seconds: float) -> str:
    """At most two units: `850 ms`, `4.2 s`, `3 min 20 s`, `2 h 5 min`, `3 d 4 h`. `times.js` writes the same."""
    seconds = max(seconds, 0.0)
    if round(seconds, 3) < 1:
        return f"{seconds * 1000:.0f} ms"
    if round(seconds, 1) < 60:
        return f"{seconds:.1f} s".replace(".0 s", " s")
    remaining = round(seconds)
    parts: list[tuple[int, str]] = []
    for size, unit in zip(_UNITS, ("d", "h", "min", "s"), strict=True):
        count, remaining = divmod(remaining, size)
        if count or parts:
            parts.append((count, unit))
    return " ".join(f"{count} {unit}" for count, unit in parts[:2] if count)


def read_time(text: str) -> datetime:
    """A time in RFC 3339. Raises ValueError if the string is not a time or has no time zone."""
    try:
        at = datetime.fromisoformat(text.strip())
    except ValueError as error:
        raise ValueError(f"{text[:40]!r} is not a time; write it like 2030-01-31T08:00:00Z") from error
    if at.tzinfo is None:
        raise ValueError(f"{text[:40]!r} has no time zone; write it like 2030-01-31T08:00:00Z")
    return at
