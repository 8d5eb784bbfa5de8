"""The database's clock, as near as this process knows it: all times of a job come from one clock."""

from datetime import UTC, datetime, timedelta


class DatabaseClock:
    def __init__(self) -> None:
        self._ahead = timedelta()

    def now(self) -> datetime:
        return datetime.now(UTC) + self._ahead

    def adjust(self, database_now: datetime, asked_at: datetime, answered_at: datetime) -> None:
        """The answer was true somewhere between question and answer."""
        self._ahead = database_now - (asked_at + (answered_at - asked_at) / 2)
