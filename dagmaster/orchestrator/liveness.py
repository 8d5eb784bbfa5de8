"""Whether the loop of an orchestrator still makes progress, as its heartbeat judges it."""

from datetime import datetime
from time import monotonic


class Liveness:
    """Time without the database never counts: no other instance could do better then."""

    def __init__(self) -> None:
        self._last_beat: datetime | None = None
        self._trying_since: float | None = None
        self._cycled_at: float | None = None
        self._reached_since = self._reached_at = monotonic()

    def begin_cycle(self) -> None:
        self._cycled_at = monotonic()
        if self._trying_since is None:
            self._trying_since = self._cycled_at

    def complete_cycle(self) -> None:
        self._trying_since = None

    def reach_database(self, patience_seconds: float) -> None:
        """Note that the heartbeat has its connection. A gap longer than `patience_seconds` restarts the measurement."""
        now = monotonic()
        if now - self._reached_at > patience_seconds:
            self._reached_since = now
        self._reached_at = now

    def beat(self, at: datetime) -> float:
        """Note a heartbeat; returns the seconds since the previous one."""
        last, self._last_beat = self._last_beat, at
        return (at - last).total_seconds() if last is not None else 0.0

    @property
    def seconds_without_progress(self) -> float:
        """How long the loop has tried and not completed a single cycle."""
        return self._seconds_since(self._trying_since)

    @property
    def seconds_since_cycle(self) -> float:
        """How long ago the loop began its last cycle.

        Time in which the whole process was stopped does not count: there was no heartbeat either.
        """
        return self._seconds_since(self._cycled_at)

    def _seconds_since(self, at: float | None) -> float:
        return 0.0 if at is None else max(monotonic() - max(at, self._reached_since), 0.0)
