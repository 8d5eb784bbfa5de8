"""The database's clock, estimated in this process: all times of a job come from one clock."""

from datetime import UTC, datetime, timedelta
from time import monotonic


class DatabaseClock:
    """Advances with the monotonic clock: setting the clock of the machine moves no timeout."""

    def __init__(self) -> None:
        # The database's time at the zero of the monotonic clock; the machine's until the first adjustment.
        self._zero = datetime.now(UTC) - timedelta(seconds=monotonic())

    def now(self) -> datetime:
        return self._zero + timedelta(seconds=monotonic())

    def adjust(self, database_now: datetime, asked_at: float, answered_at: float) -> None:
        """Correct the estimate if it contradicts the response, which was true at some moment between the two times.

        So a late response, in a process that was stopped or cut off, changes nothing. Both times are monotonic.
        """
        least, most = database_now - timedelta(seconds=answered_at), database_now - timedelta(seconds=asked_at)
        self._zero = min(max(self._zero, least), most)
