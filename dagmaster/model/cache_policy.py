"""How long the result of a task is reused for other tasks with the same parameters."""

import math
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from dagmaster.model.durations import read_duration

MAX_CACHE_SECONDS: Final = 100 * 366 * 86_400
MAX_VERSION_CHARS: Final = 128
_FORMS: Final = 'a number of seconds, a timedelta, a string such as "15m" or "1d", or True'

Cache = bool | float | str | timedelta


@dataclass(frozen=True, slots=True)
class Caching:
    """`seconds` is None for no expiry. Results of another `version` are not reused."""

    seconds: float | None = None
    version: str = ""


def read_caching(cache: Cache | None, version: str = "") -> Caching | None:
    """None for no caching. Raises TypeError or ValueError."""
    if not isinstance(version, str):
        raise TypeError(f"cache_version must be a string, not {version!r}")
    if len(version) > MAX_VERSION_CHARS or not version.isprintable():
        raise ValueError(f"cache_version must have at most {MAX_VERSION_CHARS} printable characters")
    if cache is None or cache is False:
        return None
    return Caching(None if cache is True else _seconds(cache), version)


def _seconds(cache: float | str | timedelta) -> float:
    match cache:
        case timedelta():
            seconds = cache.total_seconds()
        case str():
            seconds = _read(cache)
        case int() | float():
            seconds = float(cache) if abs(cache) <= MAX_CACHE_SECONDS else math.inf
        case _:
            raise TypeError(f"cache must be {_FORMS}, not {cache!r}")
    if not 0 < seconds <= MAX_CACHE_SECONDS:
        raise ValueError(f"cache={cache!r} must be more than 0 s and at most 100 years; use True for no limit")
    return seconds


def _read(text: str) -> float:
    try:
        return read_duration(text)
    except ValueError as error:
        raise ValueError(f"cache: {error}") from error
