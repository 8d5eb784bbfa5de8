"""Points in time in RFC 3339, always with a time zone."""

from datetime import datetime


def read_time(text: str) -> datetime:
    """Raises ValueError if the string is not a time or has no time zone."""
    try:
        at = datetime.fromisoformat(text.strip())
    except ValueError as error:
        raise ValueError(f"{text[:40]!r} is not a time; write it like 2030-01-31T08:00:00Z") from error
    if at.tzinfo is None:
        raise ValueError(f"{text[:40]!r} has no time zone; write it like 2030-01-31T08:00:00Z")
    return at
