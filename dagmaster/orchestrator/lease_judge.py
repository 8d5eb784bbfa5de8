"""Whether an orchestrator may judge the leases of others."""

from time import monotonic


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
