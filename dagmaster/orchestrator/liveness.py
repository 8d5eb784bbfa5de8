"""Whether an orchestrator still makes progress, and whether it may judge the leases of others."""

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
    def stalled_seconds(self) -> float:
        """How long cycles have failed, or the loop has been blocked."""
        return max(self.seconds_since_cycle, self.seconds_without_progress)

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


class LeaseJudge:
    """While the database was blocked or unreachable, no instance could renew its lease: afterwards each has a whole
    lease to do so.
    """

    def __init__(self, lease_seconds: float) -> None:
        self._lease_seconds = lease_seconds
        self._looked_at: float | None = None
        self._judges_from = 0.0

    def may_judge(self) -> bool:
        """Call after a successful query: its result counts if the previous query was not long ago."""
        now = monotonic()
        if self._looked_at is not None and now - self._looked_at > self._lease_seconds / 2:
            self._judges_from = now + self._lease_seconds
        self._looked_at = now
        return now >= self._judges_from

    def lose(self) -> None:
        """Note that the connection was lost, perhaps with those of all others."""
        self._judges_from = monotonic() + self._lease_seconds
