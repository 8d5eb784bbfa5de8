"""An orchestrator's idea of the database's clock."""

from datetime import UTC, datetime, timedelta

from dagmaster.orchestrator.clock import DatabaseClock

MILLISECOND = timedelta(milliseconds=1)


def offset(clock: DatabaseClock) -> timedelta:
    return clock.now() - datetime.now(UTC)


def test_a_quick_answer_sets_the_clock_to_within_the_time_it_took() -> None:
    clock, asked = DatabaseClock(), datetime.now(UTC)
    ahead = timedelta(hours=1)
    clock.adjust(asked + ahead + MILLISECOND, asked, asked + 2 * MILLISECOND)
    assert abs(offset(clock) - ahead) <= 50 * MILLISECOND


def test_an_answer_that_was_on_its_way_for_long_does_not_move_a_clock_that_it_agrees_with() -> None:
    """Whether the question or the answer was held up."""
    for held_up in (timedelta(), timedelta(seconds=5)):
        clock, asked = DatabaseClock(), datetime.now(UTC)
        clock.adjust(asked + held_up, asked, asked + timedelta(seconds=5))
        assert abs(offset(clock)) <= 50 * MILLISECOND


def test_a_late_answer_still_moves_a_clock_that_it_proves_wrong() -> None:
    clock, asked = DatabaseClock(), datetime.now(UTC)
    clock.adjust(asked + timedelta(minutes=1), asked, asked + timedelta(seconds=5))
    assert timedelta(seconds=54) < offset(clock) < timedelta(seconds=61)
