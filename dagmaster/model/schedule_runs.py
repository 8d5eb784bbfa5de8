"""The jobs that a schedule must start now, and their inputs. Pure: the caller passes the time."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from dagmaster.model.inputs import WrongInputs, check_inputs
from dagmaster.model.problems import Problem
from dagmaster.model.schedule import Catchup, Schedule, newest_time, next_time, times_between
from dagmaster.model.workflow import InputType, Workflow

# A job that is started so late was late, not missed.
ON_TIME: Final = timedelta(seconds=60)
MAX_AT_ONCE: Final = 1000


@dataclass(frozen=True, slots=True)
class Due:
    """The times to start jobs for, those that are left out, and when to look again.

    `missed` are at most `MAX_AT_ONCE`; `is_more` when there were more of them.
    """

    times: tuple[datetime, ...]
    missed: tuple[datetime, ...]
    is_more: bool
    next_at: datetime


def find_due(schedule: Schedule, next_at: datetime, now: datetime) -> Due:
    """A time is missed when the next one has come before anybody looked, or a minute has passed."""
    end = now + timedelta(microseconds=1)
    if schedule.catchup is Catchup.ALL:
        times = times_between(schedule, next_at, end, MAX_AT_ONCE)
        return Due(tuple(times), (), False, next_time(schedule, times[-1] if times else now))
    newest = newest_time(schedule, now)
    if newest is None or newest < next_at:
        return Due((), (), False, next_time(schedule, now))
    is_wanted = schedule.catchup is Catchup.LAST or now - newest <= ON_TIME
    older = times_between(schedule, next_at, newest if is_wanted else end, MAX_AT_ONCE + 1)
    missed, is_more = tuple(older[:MAX_AT_ONCE]), len(older) > MAX_AT_ONCE
    return Due((newest,) if is_wanted else (), missed, is_more, next_time(schedule, now))


def inputs_at(workflow: Workflow, at: datetime) -> dict[str, Any]:
    """What the job for this time is started with. Raise WrongInputs."""
    schedule = workflow.schedule
    assert schedule is not None
    named = {schedule.time_input: show_time(at)} if schedule.time_input else {}
    return check_inputs(workflow, {**schedule.inputs, **named})


def show_time(at: datetime) -> str:
    """RFC 3339 in UTC."""
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


def find_schedule_problems(workflow: Workflow) -> Iterator[Problem]:
    """Scheduled jobs get no other inputs than those of the schedule, so these must suffice."""
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
            f"the schedule gives the secret input {name!r} a value, which everybody can read who reads the file: leave "
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
