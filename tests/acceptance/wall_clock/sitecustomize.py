"""Python loads this before anything else where its folder is in PYTHONPATH: on SIGUSR2 somebody sets the wall clock.

`WALL_CLOCK_HOURS` is how far ahead. The monotonic clock goes on, as it does on a real machine.
"""

import datetime
import os
import signal
import time
from typing import Any

ahead = 0.0
real_datetime = datetime.datetime
real_time = time.time


class WallClock(type):
    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, real_datetime)


class Datetime(real_datetime, metaclass=WallClock):
    """Only its clock differs: what it makes are real datetimes, for libraries that look at the exact type."""

    __slots__ = ()  # As large as a real one, which compiled libraries check.

    def __new__(cls, *args: Any, **options: Any) -> Any:
        return real_datetime(*args, **options)

    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> Any:
        return real_datetime.now(tz) + datetime.timedelta(seconds=ahead)


def set_clock(*_: object) -> None:
    global ahead  # noqa: PLW0603 - there is one wall clock
    ahead = float(os.environ["WALL_CLOCK_HOURS"]) * 3600
    os.write(2, f"wall clock: {datetime.datetime.now(datetime.UTC)}\n".encode())


datetime.datetime = Datetime  # type: ignore[misc]
time.time = lambda: real_time() + ahead
time.time_ns = lambda: int(time.time() * 1_000_000_000)
signal.signal(signal.SIGUSR2, set_clock)
