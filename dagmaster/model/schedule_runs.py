"""The jobs that a schedule must start now, and their inputs. Pure: the caller passes the time."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from dagmaster.model.inputs import WrongInputs, check_inputs
from dagmaster.model.problems import Problem
from dagmaster.model.schedule import Catchup, Schedule, newest_time, next_time, times_between
from dagmaster.model.workflow import InputType, Workflow

# A job started within this time is late, not missed.
ON_TIME: Final = timedelta(seconds=60)
MAX_AT_ONCE: Final = 1000


@dataclass(frozen=True, slots=True)
class Due:
    """The times to start jobs for, the missed times, and the next time.

    `missed` holds at most `MAX_AT_ONCE`; `is_more` if there were more.
    """

    times: tuple[datetime, ...]
    missed: tuple[datetime, ...]
    is_more: bool
    next_at: datetime


def find_due(schedule: Schedule, next_at: datetime, now: datetime) -> Due:
    """A time is missed if the next time came before a check, or if a minute has passed."""
    end = now + timedelta(microseconds=1)
    if schedule.catchup is Catchup.ALL:
        times = times_between(schedule, next_at, end, MAX_AT_ONCE)
        return Due(tuple(times), (), False, next_time(schedule, times[-1] if times else now))
    newest = newest_time(schedule, now)
    if newest is None or newest < next_at:
        return Due((), (), False, next_time(schedule, now))
    starts_newest = schedule.catchup is Catchup.LAST or now - newest <= ON_TIME
    older = times_between(schedule, next_at, newest if starts_newest else end, MAX_AT_ONCE + 1)
    missed, is_more = tuple(older[:MAX_AT_ONCE]), len(older) > MAX_AT_ONCE
    return Due((newest,) if starts_newest else (), missed, is_more, next_time(schedule, now))


def inputs_at(workflow: Workflow, at: datetime) -> dict[str, Any]:
    """The inputs of the job for this time. Raise WrongInputs."""
    schedule = workflow.schedule
    assert schedule is not None
    named = {schedule.time_input: show_time(at)} if schedule.time_input else {}
    return check_inputs(workflow, {**schedule.inputs, **named})


def show_time(at: datetime) -> str:
    """RFC 3339 in UTC."""
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


def find_schedule_problems(workflow: Workflow) -> Iterator[Problem]:
    """Scheduled jobs get only the schedule's inputs, so these must be complete."""
    schedule = workflow.schedule
    if schedule is None:
        return
    name = schedule.time_input
    if name and (spec := workflow.inputs.get(name)) and spec.type is not InputType.STRING:
        yield Problem(f"the time_input {name!r} must be a string, not {spec.type}", ("schedule", "time_input"))
        return
    secret = [name for name in schedule.inputs if name in workflow.inputs and workflow.inputs[name].secret]
    for name in secret:
        yield Problem(
            f"the schedule gives the secret input {name!r} a value, which everybody who reads the file can see: leave "
            f"it out here, make the input optional or remove it, and let the nodes that need the value take it from "
            f"the environment: '{{{{ env.{name.upper()} }}}}', with DAGMASTER_VAR_{name.upper()} and "
            f"DAGMASTER_SECRET_ENV={name.upper()} set for the orchestrators",
            ("schedule", "inputs", name),
        )
    if secret:
        return
    try:
        inputs_at(workflow, datetime(2000, 1, 1, tzinfo=UTC))
    except WrongInputs as error:
        for problem in error.problems:
            yield Problem(f"the schedule cannot start a job: {problem}", ("schedule", "inputs"))
