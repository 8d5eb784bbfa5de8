"""Durations as people write them: `90s`, `15m`, `1h30m`, `2d`."""

import re
from typing import Final

_FORM: Final = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?", re.ASCII)
_UNITS: Final = (86_400, 3_600, 60, 1)
MAX_DURATION_CHARS: Final = 32


def read_duration(text: str) -> float:
    """The duration in seconds; raises ValueError if the string is not a duration."""
    written = text.replace(" ", "").lower()
    found = _FORM.fullmatch(written) if len(written) <= MAX_DURATION_CHARS else None
    if not written or found is None:
        raise ValueError(f"{text[:MAX_DURATION_CHARS]!r} is not a duration; write for example 90s, 15m, 1h30m or 2d")
    return sum(float(part) * unit for part, unit in zip(found.groups(), _UNITS, strict=True) if part)


def write_duration(seconds: float) -> str:
    """`4.2 s`, `3 min 05 s`, `2 h 05 min`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"
