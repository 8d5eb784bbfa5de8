"""Whether an orchestrator may judge the leases of others."""

from time import monotonic


class Sight:
    """While the judge could not see, because the database stood still or was locked, nobody else could beat: afterwards
    each has a whole lease to do so.
    """

    def __init__(self, lease_seconds: float) -> None:
        self._lease_seconds = lease_seconds
        self._looked_at: float | None = None
        self._judges_from = 0.0

    def may_judge(self) -> bool:
        """To be asked when a look was answered: what it showed counts if there was another one not long before it."""
        now = monotonic()
        if self._looked_at is not None and now - self._looked_at > self._lease_seconds / 2:
            self._judges_from = now + self._lease_seconds
        self._looked_at = now
        return now >= self._judges_from

    def lose(self) -> None:
        """The connection was lost, perhaps with everybody else's."""
        self._judges_from = monotonic() + self._lease_seconds
