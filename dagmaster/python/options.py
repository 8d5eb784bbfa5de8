"""Options of the decorators, converted for definitions: durations, retries, schedules."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from pydantic import ValidationError

from dagmaster.errors import Invalid, Misconfigured
from dagmaster.model.retry import RetryPolicy

Duration = float | timedelta


def seconds_of(duration: Duration) -> float:
    return duration.total_seconds() if isinstance(duration, timedelta) else float(duration)


def retry_of(
    retries: int | RetryPolicy | None, delay: Duration | None, default: RetryPolicy | None = None
) -> RetryPolicy | None:
    """Options default to those of `default`."""
    if retries is None and delay is None:
        return default
    base = retries if isinstance(retries, RetryPolicy) else default
    fields: dict[str, Any] = base.model_dump(exclude_unset=True) if base is not None else {}
    if isinstance(retries, int):
        fields["max_attempts"] = retries
    if delay is not None:
        fields["initial_delay_seconds"] = seconds_of(delay)
        fields["max_delay_seconds"] = max(seconds_of(delay), fields.get("max_delay_seconds", 300))
    try:
        return RetryPolicy(**fields)
    except ValidationError as error:
        raise Invalid(f"retries={retries!r}, retry_delay={delay!r}: {error.errors()[0]['msg']}") from error


def schedule_of(
    schedule: str | timedelta | Mapping[str, Any] | None, timezone: str | None, catchup: str | None
) -> dict[str, Any] | None:
    more = {key: value for key, value in (("timezone", timezone), ("catchup", catchup)) if value is not None}
    match schedule:
        case None if more:
            raise Misconfigured(f"{' and '.join(more)} needs a schedule, such as schedule='0 6 * * *'")
        case None:
            return None
        case str():
            return {"cron": schedule, **more}
        case timedelta():
            return {"every_seconds": int(schedule.total_seconds()), **more}
        case _:
            return {**schedule, **more}
