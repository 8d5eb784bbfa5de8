"""A clock that tests can advance: a wait of two hours ends at once.

Only the orchestrator's times follow it. Leases and heartbeats use the database's clock, so that no process is declared
lost because a test advances the time.
"""

from collections.abc import Callable
from datetime import datetime, timedelta

from dagmaster.errors import Invalid
from dagmaster.orchestrator.clock import DatabaseClock


class TravelClock(DatabaseClock):
    def __init__(self) -> None:
        super().__init__()
        self.skipped = timedelta()
        self.patience = timedelta()
        self._watchers: list[Callable[[], object]] = []

    def now(self) -> datetime:
        return super().now() + self.skipped

    def advance(self, **span: float) -> None:
        """Advance by this much now: `hours=2`, `minutes=`, `seconds=`, `days=`. Running tasks may time out.

        Call it from any thread.
        """
        self._skip(_positive(span))

    def skip_waiting(self, **span: float) -> None:
        """Skip the time in which the job only waits, up to this total."""
        self.patience += _positive(span)

    def go_to(self, at: datetime) -> bool:
        """Skip the time until then, within the permitted total."""
        wait = at - self.now()
        if not timedelta() < wait <= self.patience:
            return False
        self.patience -= wait
        self._skip(wait)
        return True

    def on_skip(self, call: Callable[[], object]) -> Callable[[], None]:
        """Register a callback for each skip; returns a function that removes it."""
        self._watchers.append(call)
        return lambda: self._watchers.remove(call)

    def _skip(self, span: timedelta) -> None:
        self.skipped += span
        for call in list(self._watchers):
            call()


def _positive(span: dict[str, float]) -> timedelta:
    try:
        chosen = timedelta(**span)
    except (TypeError, OverflowError) as error:
        raise Invalid(f"use a time span such as hours=2 or minutes=30: {error}") from None
    if chosen <= timedelta():
        raise Invalid(f"time can only move forward: use a span above 0, such as hours=2, not {span or 'nothing'}")
    return chosen
