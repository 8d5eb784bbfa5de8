"""An orchestrator's estimate of the database's clock, and when it may judge leases."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from dagmaster.orchestrator import clock as clock_module
from dagmaster.orchestrator import liveness
from dagmaster.orchestrator.clock import DatabaseClock
from dagmaster.orchestrator.liveness import LeaseJudge

MILLISECOND = timedelta(milliseconds=1)


@pytest.fixture
def requested_at(monkeypatch: pytest.MonkeyPatch) -> float:
    """The monotonic clock stands still then: a busy machine may pause between any two readings."""
    monkeypatch.setattr(clock_module, "monotonic", lambda: 1000.0)
    return 1000.0


def test_a_quick_response_sets_the_clock_within_its_round_trip_time(requested_at: float) -> None:
    clock = DatabaseClock()
    ahead = clock.now() + timedelta(hours=1)
    clock.adjust(ahead + MILLISECOND, requested_at, requested_at + 0.002)
    assert abs(clock.now() - ahead) <= MILLISECOND


def test_a_slow_response_does_not_move_a_clock_that_it_agrees_with(requested_at: float) -> None:
    """Whether the request or the response was delayed."""
    for held_up in (timedelta(), timedelta(seconds=5)):
        clock = DatabaseClock()
        before = clock.now()
        clock.adjust(before + held_up, requested_at, requested_at + 5)
        assert clock.now() == before


def test_a_slow_response_moves_a_clock_that_it_proves_wrong(requested_at: float) -> None:
    clock = DatabaseClock()
    before = clock.now()
    clock.adjust(before + timedelta(minutes=1), requested_at, requested_at + 5)
    assert clock.now() - before == timedelta(seconds=55)


@pytest.mark.usefixtures("requested_at")
@pytest.mark.parametrize("hours", [2, -2])
def test_changing_the_system_clock_changes_nothing(monkeypatch: pytest.MonkeyPatch, hours: int) -> None:
    class Set(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.now(tz) + timedelta(hours=hours)

    clock = DatabaseClock()
    before = clock.now()
    monkeypatch.setattr(clock_module, "datetime", Set)
    assert clock.now() == before


def test_after_an_outage_every_worker_gets_a_whole_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(liveness, "monotonic", lambda: now)
    sight = LeaseJudge(lease_seconds=10.0)
    assert sight.may_judge()
    now += 4
    assert sight.may_judge()
    now += 6  # The database hung.
    assert not sight.may_judge()
    for _ in range(3):
        now += 3
        assert not sight.may_judge()
    now += 1
    assert sight.may_judge()
    sight.lose()
    assert not sight.may_judge()
