"""What decorators take, as definitions have it: durations, retries, schedules."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from pydantic import ValidationError

from dagmaster.errors import Invalid, Misconfigured
from dagmaster.model.retry import RetryPolicy

Duration = float | timedelta


def seconds_of(given: Duration) -> float:
    return given.total_seconds() if isinstance(given, timedelta) else float(given)


def retry_of(
    retries: int | RetryPolicy | None, delay: Duration | None, known: RetryPolicy | None = None
) -> RetryPolicy | None:
    """What is not given stays as `known` has it."""
    if retries is None and delay is None:
        return known
    base = retries if isinstance(retries, RetryPolicy) else known
    given: dict[str, Any] = base.model_dump(exclude_unset=True) if base is not None else {}
    if isinstance(retries, int):
        given["max_attempts"] = retries
    if delay is not None:
        given["initial_delay_seconds"] = seconds_of(delay)
        given["max_delay_seconds"] = max(seconds_of(delay), given.get("max_delay_seconds", 300))
    try:
        return RetryPolicy(**given)
    except ValidationError as error:
        raise Invalid(f"retries={retries!r}, retry_delay={delay!r}: {error.errors()[0]['msg']}") from error


def schedule_of(
    given: str | timedelta | Mapping[str, Any] | None, timezone: str | None, catchup: str | None
) -> dict[str, Any] | None:
    more = {key: value for key, value in (("timezone", timezone), ("catchup", catchup)) if value is not None}
    match given:
        case None if more:
            raise Misconfigured(f"{' and '.join(more)} without a schedule; give one: schedule='0 6 * * *'")
        case None:
            return None
        case str():
            return {"cron": given, **more}
        case timedelta():
            return {"every_seconds": int(given.total_seconds()), **more}
        case _:
            return {**given, **more}
