"""The times at which a workflow starts automatically: by cron or at an interval. Pure: the caller passes the time."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import islice, takewhile
from typing import Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from cronsim import CronSim, CronSimError
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from dagmaster.model.durations import read_duration
from dagmaster.model.problems import did_you_mean

MAX_INTERVAL_SECONDS: Final = 366 * 86_400
CRON_FIELDS: Final = 5
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NICKNAMES: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
}
_FIRST_LOOK_BACK: Final = timedelta(hours=1)
# The 29th of February may be eight years ago.
_LONGEST_LOOK_BACK: Final = timedelta(days=366 * 20)


class Catchup(StrEnum):
    """How to treat times at which no orchestrator was running."""

    NONE = "none"
    LAST = "last"
    ALL = "all"


class Schedule(BaseModel):
    """A string alone is a cron expression. `every: 15m` is short for `every_seconds: 900`.

    Intervals are counted from 1970, not from a server's start: the times are the same everywhere.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    cron: str | None = None
    every_seconds: int | None = Field(default=None, ge=1, le=MAX_INTERVAL_SECONDS)
    timezone: str = Field(default="UTC", max_length=64)
    catchup: Catchup = Catchup.LAST
    inputs: Mapping[str, Any] = {}
    time_input: str | None = Field(default=None, min_length=1, max_length=128)

    @model_validator(mode="before")
    @classmethod
    def _spelt_out(cls, data: Any) -> Any:
        if isinstance(data, str):
            return {"cron": data}
        if not isinstance(data, Mapping) or "every" not in data:
            return data
        fields = {name: value for name, value in data.items() if name != "every"}
        if fields.get("every_seconds") is not None:
            raise ValueError("'every' and 'every_seconds' mean the same; remove one of them")
        return {**fields, "every_seconds": _read_interval(data["every"])}

    @field_validator("cron")
    @classmethod
    def _readable_cron(cls, cron: str | None) -> str | None:
        if cron is None:
            return None
        written = " ".join(_NICKNAMES.get(cron.strip().lower(), cron).split())
        if len(written.split()) != CRON_FIELDS or len(written) > 128:
            raise ValueError(
                f"{cron[:40]!r} is not a cron expression: it needs five fields, minute, hour, day, month and weekday, "
                "such as '0 6 * * *'"
            )
        try:
            first = next(CronSim(written, _EPOCH), None)
        except CronSimError as error:
            raise ValueError(f"{written!r} is not a cron expression: {_plain(error)}") from None
        if first is None:
            raise ValueError(f"{written!r} never occurs")
        return written

    @field_validator("timezone")
    @classmethod
    def _known_timezone(cls, timezone: str) -> str:
        try:
            ZoneInfo(timezone)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            hint = did_you_mean(timezone, available_timezones()) or "; such as Europe/Berlin"
            raise ValueError(f"there is no timezone {timezone!r}{hint}") from None
        return timezone

    @model_validator(mode="after")
    def _one_rule(self) -> "Schedule":
        if (self.cron is None) == (self.every_seconds is None):
            raise ValueError("it needs either 'cron' or 'every'")
        if self.cron is None and self.timezone != "UTC":
            raise ValueError("'timezone' is for 'cron': an interval is the same everywhere")
        if self.time_input is not None and self.time_input in self.inputs:
            raise ValueError(f"the input {self.time_input!r} is set by both 'inputs' and 'time_input'")
        return self

    @property
    def rule(self) -> str:
        """The rule, for display."""
        return f"every {show_interval(self.every_seconds)}" if self.every_seconds else str(self.cron)


def next_time(schedule: Schedule, after: datetime) -> datetime:
    """The first time after `after`, in UTC."""
    return next(times_after(schedule, after))


def times_after(schedule: Schedule, after: datetime) -> Iterator[datetime]:
    """All times after `after`, each once and in order, in UTC."""
    if schedule.every_seconds is not None:
        at = _whole_steps(after, schedule.every_seconds)
        while True:
            at += timedelta(seconds=schedule.every_seconds)
            yield at
    assert schedule.cron is not None
    last = after.astimezone(UTC)
    for local in CronSim(schedule.cron, after.astimezone(ZoneInfo(schedule.timezone))):
        at = local.astimezone(UTC)
        # In the hour that occurs twice, the same local time comes again.
        if at > last:
            last = at
            yield at


def times_between(schedule: Schedule, start: datetime, end: datetime, limit: int) -> list[datetime]:
    """The first `limit` times from `start` on and before `end`."""
    if start >= end:
        return []
    # In UTC: just after the clocks go forward, the local time a moment earlier does not exist.
    before = start.astimezone(UTC) - timedelta(microseconds=1)
    times = takewhile(lambda at: at < end, times_after(schedule, before))
    return list(islice(times, limit))


def newest_time(schedule: Schedule, until: datetime) -> datetime | None:
    """The last time up to and including `until`. The search for cron times goes back in growing steps."""
    if schedule.every_seconds is not None:
        return _whole_steps(until, schedule.every_seconds)
    end, span = until + timedelta(microseconds=1), _FIRST_LOOK_BACK
    while span < _LONGEST_LOOK_BACK:
        times = takewhile(lambda at: at < end, times_after(schedule, until - span))
        if (newest := max(times, default=None)) is not None:
            return newest
        span *= 2
    return None


def _whole_steps(until: datetime, seconds: int) -> datetime:
    step = timedelta(seconds=seconds)
    return _EPOCH + ((until - _EPOCH) // step) * step


def show_interval(seconds: int) -> str:
    """In the notation of durations: 5400 is `1h30m`."""
    parts = []
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        number, seconds = divmod(seconds, size)
        if number:
            parts.append(f"{number}{unit}")
    return "".join(parts)


def _read_interval(value: Any) -> Any:
    match value:
        case str():
            seconds = read_duration(value)
        case int() | float() if not isinstance(value, bool):
            seconds = float(value)
        case _:
            raise ValueError("'every' must be a duration such as 15m")
    if not seconds.is_integer() or seconds < 1:
        raise ValueError("'every' must be a whole number of seconds, at least one")
    return int(seconds)


def _plain(error: CronSimError) -> str:
    text = str(error)
    return text[:1].lower() + text[1:]
