"""The database's clock, as near as this process knows it: all times of a job come from one clock."""

from datetime import UTC, datetime, timedelta
from time import monotonic


class DatabaseClock:
    """Goes on by the monotonic clock: somebody who sets the clock of this machine moves no timeout."""

    def __init__(self) -> None:
        # What the database's clock showed when the monotonic one began; until it is asked, it is as this machine's.
        self._zero = datetime.now(UTC) - timedelta(seconds=monotonic())

    def now(self) -> datetime:
        return self._zero + timedelta(seconds=monotonic())

    def adjust(self, database_now: datetime, asked_at: float, answered_at: float) -> None:
        """The answer was true somewhere between question and answer; what agrees with that stays as it is.

        So an answer that was on its way for seconds, in a process that was stopped or cut off, moves nothing. The times
        of both are those of the monotonic clock.
        """
        least, most = database_now - timedelta(seconds=answered_at), database_now - timedelta(seconds=asked_at)
        self._zero = min(max(self._zero, least), most)
