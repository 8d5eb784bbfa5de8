"""Due times of schedules: never twice and never out of order, whatever the clocks do."""

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from dagmaster.model.durations import read_duration
from dagmaster.model.schedule import Schedule, newest_time, next_time, show_interval, times_after, times_between
from dagmaster.model.schedule_runs import MAX_AT_ONCE, find_due, find_schedule_problems, inputs_at
from dagmaster.model.workflow import EndNode, InputSpec, InputType, StartNode, Workflow

BERLIN, NEW_YORK, LORD_HOWE = "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"

ZONES = st.sampled_from(["UTC", BERLIN, NEW_YORK, LORD_HOWE, "Asia/Kathmandu", "America/St_Johns"])
CRONS = st.builds(
    "{} {} {} {} {}".format,
    st.sampled_from(["0", "30", "*/7", "15,45", "*", "59"]),
    st.sampled_from(["*", "0", "1", "2", "3", "*/6", "1-3"]),
    st.sampled_from(["*", "1", "29", "*/10", "L"]),
    st.sampled_from(["*", "*", "3", "10", "2"]),
    st.sampled_from(["*", "*", "0", "1-5", "7"]),
)
SCHEDULES = st.one_of(
    st.builds(lambda cron, zone: Schedule(cron=cron, timezone=zone), CRONS, ZONES),
    st.builds(lambda seconds: Schedule(every_seconds=seconds), st.integers(1, 10_000_000)),
)
TIMES = st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1), timezones=st.just(UTC))
# The hours around a daylight saving change in Berlin.
CHANGES = st.builds(
    lambda day, minutes: day + timedelta(minutes=minutes),
    st.sampled_from([datetime(2026, 3, 29, tzinfo=UTC), datetime(2026, 10, 25, tzinfo=UTC)]),
    st.floats(-120, 240),
)


def utc(*parts: Any) -> datetime:
    return datetime(*parts).replace(tzinfo=UTC)


def local(zone: str, schedule: Schedule, start: datetime, days: int) -> list[str]:
    times = times_between(schedule, start, start + timedelta(days=days), 100)
    return [at.astimezone(ZoneInfo(zone)).strftime("%d %H:%M") for at in times]


@given(SCHEDULES, TIMES | CHANGES)
def test_the_next_time_is_later_and_none_lies_between(schedule: Schedule, after: datetime) -> None:
    following = next_time(schedule, after)
    assert following > after
    assert following.tzinfo is UTC
    for part in (0.001, 0.3, 0.9, 0.999):
        between = after + (following - after) * part
        if between < following:
            assert next_time(schedule, between) == following


@given(SCHEDULES, TIMES | CHANGES)
def test_times_do_not_depend_on_the_starting_point(schedule: Schedule, after: datetime) -> None:
    times = times_after(schedule, after)
    counted = [next(times) for _ in range(6)]
    assert counted == sorted(set(counted))
    steps = [after]
    for _ in counted:
        steps.append(next_time(schedule, steps[-1]))
    assert steps[1:] == counted


@given(SCHEDULES, TIMES | CHANGES)
def test_the_latest_time_is_the_one_before_the_next(schedule: Schedule, until: datetime) -> None:
    newest = newest_time(schedule, until)
    assert newest is not None
    assert newest <= until < next_time(schedule, newest)
    assert newest_time(schedule, newest) == newest


@given(SCHEDULES, TIMES, st.integers(0, 5))
def test_a_range_includes_its_start_and_excludes_its_end(schedule: Schedule, after: datetime, number: int) -> None:
    start = next_time(schedule, after)
    times = [start]
    for _ in range(number):
        times.append(next_time(schedule, times[-1]))
    assert times_between(schedule, start, times[-1], 100) == times[:-1]
    assert times_between(schedule, start, times[-1] + timedelta(microseconds=1), 100) == times
    assert times_between(schedule, start, times[-1], 2) == times[:-1][:2]


def test_a_time_skipped_by_daylight_saving_runs_after_the_change() -> None:
    schedule = Schedule(cron="30 2 * * *", timezone=BERLIN)
    assert local(BERLIN, schedule, utc(2026, 3, 28), 3) == ["28 02:30", "29 03:00", "30 02:30"]


def test_a_time_repeated_by_daylight_saving_runs_once() -> None:
    schedule = Schedule(cron="30 2 * * *", timezone=BERLIN)
    assert local(BERLIN, schedule, utc(2026, 10, 24), 3) == ["24 02:30", "25 02:30", "26 02:30"]
    assert next_time(schedule, utc(2026, 10, 25, 0, 30)) == utc(2026, 10, 26, 1, 30)
    assert next_time(schedule, utc(2026, 10, 25, 1, 10)) == utc(2026, 10, 26, 1, 30)  # 02:10 for the second time.


def test_hourly_schedules_are_unaffected_by_daylight_saving() -> None:
    schedule = Schedule(cron="0 * * * *", timezone=BERLIN)
    for day in (utc(2026, 3, 29), utc(2026, 10, 25)):
        assert times_between(schedule, day, day + timedelta(hours=6), 10) == [
            day + timedelta(hours=hour) for hour in range(6)
        ]


def test_a_range_can_start_at_a_daylight_saving_change() -> None:
    schedule = Schedule(cron="30 * * * *", timezone=BERLIN)
    start = datetime(2026, 3, 29, 3, tzinfo=ZoneInfo(BERLIN))
    assert times_between(schedule, start, start + timedelta(hours=2), 9) == [
        utc(2026, 3, 29, 1, 30),
        utc(2026, 3, 29, 2, 30),
    ]


def test_a_daily_schedule_follows_its_timezone() -> None:
    schedule = Schedule(cron="0 6 * * *", timezone=NEW_YORK)
    assert next_time(schedule, utc(2026, 1, 10)) == utc(2026, 1, 10, 11)
    assert next_time(schedule, utc(2026, 7, 10)) == utc(2026, 7, 10, 10)


def test_intervals_are_counted_from_1970() -> None:
    assert next_time(Schedule.model_validate({"every": "15m"}), utc(2026, 1, 1, 10, 7)) == utc(2026, 1, 1, 10, 15)
    assert next_time(Schedule(every_seconds=900), utc(2026, 1, 1, 10, 15)) == utc(2026, 1, 1, 10, 30)


@given(st.integers(1, 10_000_000))
def test_an_interval_is_formatted_as_it_can_be_written(seconds: int) -> None:
    assert read_duration(show_interval(seconds)) == seconds


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ("61 * * * *", "bad minute"),
        ("0 6 * *", "it needs five fields"),
        ("0 0 6 * * *", "it needs five fields"),
        ("0 0 31 2 *", "bad day-of-month"),
        ({"cron": "0 6 * * *", "timezone": "Europe/Berln"}, "did you mean 'Europe/Berlin'"),
        ({"cron": "0 6 * * *", "timezone": "../etc/passwd"}, "there is no timezone"),
        ({"cron": "0 6 * * *", "timezone": ""}, "there is no timezone"),
        ({"cron": "0 6 * * *", "timezone": "Europe"}, "there is no timezone"),
        ({"cron": "0 6 * * *", "every": "1h"}, "either 'cron' or 'every'"),
        ({}, "either 'cron' or 'every'"),
        ({"every": "1h", "timezone": BERLIN}, "'timezone' is for 'cron'"),
        ({"every": "0s"}, "at least one"),
        ({"every": 0.5}, "whole number of seconds"),
        ({"every": True}, "must be a duration"),
        ({"every": "400d"}, "less than or equal"),
        ({"every": "1h", "every_seconds": 60}, "mean the same"),
        ({"every": "1h", "inputs": {"a": 1}, "time_input": "a"}, "by both"),
        ({"every": "1h", "catchup": "some"}, "'none', 'last' or 'all'"),
    ],
)
def test_an_invalid_schedule_is_refused_with_the_reason(document: Any, reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        Schedule.model_validate(document)


def test_nicknames_are_expanded() -> None:
    assert Schedule.model_validate("@daily").cron == "0 0 * * *"
    assert Schedule.model_validate("@Hourly") == Schedule(cron="0 * * * *")


# Due runs.

HOURLY = {"cron": "0 * * * *"}
DOWN_SINCE = utc(2026, 1, 1, 7)


def test_a_slightly_late_run_starts_whatever_the_catchup() -> None:
    for catchup in ("none", "last", "all"):
        due = find_due(Schedule(**HOURLY, catchup=catchup), DOWN_SINCE, utc(2026, 1, 1, 7, 0, 59))
        assert (due.times, due.missed, due.next_at) == ((DOWN_SINCE,), (), utc(2026, 1, 1, 8))


@pytest.mark.parametrize(
    ("catchup", "hours", "missed"), [("none", [], [7, 8, 9]), ("last", [9], [7, 8]), ("all", [7, 8, 9], [])]
)
def test_missed_runs_follow_catchup(catchup: str, hours: list[int], missed: list[int]) -> None:
    due = find_due(Schedule(**HOURLY, catchup=catchup), DOWN_SINCE, utc(2026, 1, 1, 9, 30))
    assert [at.hour for at in due.times] == hours
    assert [at.hour for at in due.missed] == missed
    assert due.next_at == utc(2026, 1, 1, 10)


def test_without_catchup_the_latest_run_starts_if_only_late() -> None:
    due = find_due(Schedule(**HOURLY, catchup="none"), DOWN_SINCE, utc(2026, 1, 1, 9, 0, 30))
    assert [at.hour for at in due.times] == [9]
    assert [at.hour for at in due.missed] == [7, 8]


def test_catchup_all_starts_up_to_a_thousand_runs_at_a_time() -> None:
    schedule, now = Schedule.model_validate({"every": "1m", "catchup": "all"}), utc(2026, 1, 3)
    next_at, times = utc(2026, 1, 1), list[datetime]()
    while next_at <= now:
        due = find_due(schedule, next_at, now)
        assert len(due.times) <= MAX_AT_ONCE
        times += due.times
        next_at = due.next_at
    assert times == times_between(schedule, utc(2026, 1, 1), now + timedelta(seconds=1), 10_000)


def test_missed_runs_are_counted_up_to_a_limit() -> None:
    due = find_due(Schedule.model_validate({"every": "1s"}), utc(2020, 1, 1), utc(2026, 1, 1))
    assert (due.times, len(due.missed), due.is_more) == ((utc(2026, 1, 1),), MAX_AT_ONCE, True)


def test_a_time_that_the_rule_no_longer_has_starts_nothing() -> None:
    """The rule has changed since the row was written, and no longer contains the old time."""
    due = find_due(Schedule(cron="0 0 1 1 *"), utc(2026, 5, 5), utc(2026, 5, 6))
    assert (due.times, due.missed, due.next_at) == ((), (), utc(2027, 1, 1))


# The workflow.


def workflow(schedule: Any, **inputs: InputSpec) -> Workflow:
    nodes = {"START": StartNode(next=("END",)), "END": EndNode()}
    return Workflow(workflow_id="w", name="w", inputs=inputs, nodes=nodes, schedule=schedule)


def test_a_workflow_without_a_schedule_keeps_its_hash() -> None:
    assert b"schedule" not in workflow(None).json_definition
    assert workflow(None).content_hash != workflow("0 6 * * *").content_hash


def test_a_schedule_survives_pinning() -> None:
    pinned = workflow({"every": "15m", "inputs": {"a": 1}, "catchup": "all"}, a=InputSpec(type=InputType.INTEGER))
    assert Workflow.model_validate_json(pinned.json_definition) == pinned


def test_a_job_gets_the_inputs_and_the_time_of_its_schedule() -> None:
    spec = {"a": InputSpec(), "day": InputSpec(), "b": InputSpec(required=False, default="x")}
    scheduled = workflow({"every": "15m", "inputs": {"a": "1"}, "time_input": "day"}, **spec)
    assert inputs_at(scheduled, utc(2026, 1, 2, 3)) == {"a": "1", "day": "2026-01-02T03:00:00Z", "b": "x"}
    assert list(find_schedule_problems(scheduled)) == []


def test_a_schedule_without_required_inputs_is_a_problem() -> None:
    [problem] = find_schedule_problems(workflow("@daily", a=InputSpec()))
    assert problem.message == "the schedule cannot start a job: input 'a' is required (string)"
    [problem] = find_schedule_problems(
        workflow({"cron": "@daily", "time_input": "a"}, a=InputSpec(type=InputType.INTEGER))
    )
    assert problem.message == "the time_input 'a' must be a string, not integer"
    [problem] = find_schedule_problems(workflow({"cron": "@daily", "time_input": "a"}))
    assert "input 'a' is unknown" in problem.message
