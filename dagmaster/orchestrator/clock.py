"""The database's clock, as near as this process knows it: all times of a job come from one clock."""

from datetime import UTC, datetime, timedelta


class DatabaseClock:
    def __init__(self) -> None:
        self._ahead = timedelta()

    def now(self) -> datetime:
        return datetime.now(UTC) + self._ahead

    def adjust(self, database_now: datetime, asked_at: datetime, answered_at: datetime) -> None:
        """The answer was true somewhere between question and answer; what agrees with that stays as it is.

        So an answer that was on its way for seconds, in a process that was stopped or cut off, moves nothing.
        """
        least, most = database_now - answered_at, database_now - asked_at
        self._ahead = min(max(self._ahead, least), most)
