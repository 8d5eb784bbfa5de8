"""The `schedule` of a workflow file: its meaning, and its mistakes."""

import pytest

from dagmaster.authoring.yaml import QueueRules, parse_workflow, read_workflow
from dagmaster.model.schedule import Catchup, Schedule

FILE = """\
workflow_id: nightly
schedule: {schedule}
inputs:
  day: {{type: string, required: false}}
  region: {region}
nodes:
  work: {{type: task, handler: echo, queue: q}}
"""
RULES = QueueRules(None, "q")


def read(schedule: str, region: str = "{default: north}") -> Schedule | None:
    return parse_workflow(FILE.format(schedule=schedule, region=region), queues=RULES).schedule


def problems(schedule: str, region: str = "{default: north}") -> list[str]:
    workflow, problems = read_workflow(FILE.format(schedule=schedule, region=region), queues=RULES)
    assert workflow is None
    return [f"{problem.line}:{problem.column} {problem.message}" for problem in problems]


def test_a_string_is_a_cron_expression() -> None:
    assert read('"0 6 * * *"') == Schedule(cron="0 6 * * *", timezone="UTC", catchup=Catchup.LAST)
    assert read("0 6 * * *") == Schedule(cron="0 6 * * *")


def test_a_mapping_has_further_options() -> None:
    assert read("{cron: '0 6 * * 1-5', timezone: Europe/Berlin, catchup: none, time_input: day}") == Schedule(
        cron="0 6 * * 1-5", timezone="Europe/Berlin", catchup=Catchup.NONE, time_input="day"
    )
    assert read("{every: 15m, catchup: all, inputs: {region: south}}") == Schedule(
        every_seconds=900, catchup=Catchup.ALL, inputs={"region": "south"}
    )


@pytest.mark.parametrize("nothing", ["", "null", "~"])
def test_a_missing_schedule_is_none(nothing: str) -> None:
    assert read(nothing) is None


@pytest.mark.parametrize(
    ("schedule", "reason"),
    [
        ('"61 6 * * *"', "2:11 'cron' of the schedule: '61 6 * * *' is not a cron expression: bad minute"),
        ("{cron: '0 6 * * *', timezone: Berlin}", "2:41 'timezone' of the schedule: there is no timezone 'Berlin'"),
        ("{every: soon}", "2:19 the schedule: 'soon' is not a duration; write for example 90s, 15m, 1h30m or 2d"),
        ("{every: 15m, catchup: some}", "2:33 'catchup' of the schedule: input should be 'none', 'last' or 'all'"),
        ("{every: 15m, cachup: all}", "2:24 unknown key 'cachup' in 'schedule'; did you mean 'catchup'?"),
        ("{timezone: UTC}", "2:11 the schedule: it needs either 'cron' or 'every'"),
        ("[1]", "2:11 'schedule' must be a cron expression in quotes, or a mapping with 'cron' or 'every'"),
        ("{every: 1h, inputs: [1]}", "2:31 'inputs' of the schedule: input should be a valid dictionary"),
        (
            "{every: 1h, inputs: {regon: x}}",
            "2:31 the schedule cannot start a job: input 'regon' is unknown; did you mean 'region'?",
        ),
        ("{every: 1h, time_input: when}", "2:11 the schedule cannot start a job: input 'when' is unknown"),
    ],
)
def test_mistakes_are_reported_at_their_place(schedule: str, reason: str) -> None:
    [problem] = problems(schedule)
    assert problem.startswith(reason)


def test_a_required_input_missing_from_the_schedule_is_reported_at_load() -> None:
    assert problems('"0 6 * * *"', region="string") == [
        "2:11 the schedule cannot start a job: input 'region' is required (string)"
    ]
    assert read("{cron: '0 6 * * *', inputs: {region: east}}", region="string") is not None
    assert read("{cron: '0 6 * * *', time_input: region}", region="string") is not None


def test_a_secret_cannot_be_in_a_schedule() -> None:
    secret = "{type: string, secret: true, required: false}"
    assert problems("{every: 1h, inputs: {region: hush-hush}}", secret) == [
        "2:40 the schedule gives the secret input 'region' a value, which everybody who reads the file can see: leave "
        "it out here, make the input optional or remove it, and let the nodes that need the value take it from the "
        "environment: '{{ env.REGION }}', with DAGMASTER_VAR_REGION and DAGMASTER_SECRET_ENV=REGION set for the "
        "orchestrators"
    ]
    assert read("{every: 1h}", secret) is not None
