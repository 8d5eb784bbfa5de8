"""Points in time as people and programs write them: RFC 3339, always with the time zone."""

from datetime import datetime


def read_time(text: str) -> datetime:
    """Raise ValueError where the text is none, or could be meant for any time zone."""
    try:
        at = datetime.fromisoformat(text.strip())
    except ValueError as error:
        raise ValueError(f"{text[:40]!r} is no time; write it such as 2030-01-31T08:00:00Z") from error
    if at.tzinfo is None:
        raise ValueError(f"{text[:40]!r} does not say its time zone; write it such as 2030-01-31T08:00:00Z")
    return at
