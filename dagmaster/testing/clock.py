"""A clock that can be moved forward: what waits for two hours is due at once.

Only the orchestrator's times follow it. Leases and heartbeats are kept by the database's own clock, so that nobody is
given up because a test is in a hurry.
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
        """Move on by this much, now: `hours=2`, `minutes=`, `seconds=`, `days=`. Timeouts of what runs count as well.

        Call it from any thread.
        """
        self._skip(_positive(span))

    def skip_waiting(self, **span: float) -> None:
        """Whenever there is nothing to do but to wait, go on at once, until this much was skipped in all."""
        self.patience += _positive(span)

    def go_to(self, at: datetime) -> bool:
        """Skip the time until then, if that much may be skipped."""
        wait = at - self.now()
        if not timedelta() < wait <= self.patience:
            return False
        self.patience -= wait
        self._skip(wait)
        return True

    def on_skip(self, call: Callable[[], object]) -> Callable[[], None]:
        """Called after each skip, until what this returns is called."""
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
