"""Retry rules: what a policy may say, and what it means."""

from datetime import timedelta
from random import Random
from typing import Any

import pytest
from pydantic import ValidationError

from dagmaster.handlers.contract import Retry
from dagmaster.handlers.invocation import error_types
from dagmaster.model.retry import OUT_OF_MEMORY, RETRY_REQUESTED, TIMED_OUT, OnOom, RetryPolicy, retry_delay
from dagmaster.model.retry import find_queue_after as queue_after
from dagmaster.model.retry import find_rule_against as rule_against
from dagmaster.model.workflow import EndNode, StartNode, TaskNode, Workflow

REFUSED = ("ConnectionRefusedError", "ConnectionError", "OSError", "Exception")
STATUS = ("HTTPStatusError", "httpx.HTTPStatusError", "HTTPError", "httpx.HTTPError", "Exception")
EXHAUSTED = ("MemoryError", "Exception")


@pytest.mark.parametrize(
    ("rules", "error", "rule"),
    [
        ({}, REFUSED, None),
        ({}, (), None),
        ({"on": ["ConnectionRefusedError"]}, REFUSED, None),
        ({"on": ["OSError"]}, REFUSED, None),
        ({"on": ["httpx.HTTPError"]}, STATUS, None),
        ({"on": ["HTTPStatusError"]}, STATUS, None),
        ({"on": ["ValueError", "KeyError"]}, REFUSED, "on: ValueError, KeyError"),
        ({"on": ["ValueError"]}, (), "on: ValueError"),
        ({"never": ["OSError"]}, REFUSED, "never: OSError"),
        ({"never": ["Exception", "ConnectionError"]}, REFUSED, "never: ConnectionError"),
        ({"never": ["ValueError"]}, REFUSED, None),
        ({"never": ["ValueError"]}, (), None),
        ({"on": ["OSError"], "never": ["ConnectionError"]}, REFUSED, "never: ConnectionError"),
        ({"on": ["OSError"], "never": ["ConnectionError"]}, ("FileNotFoundError", "OSError", "Exception"), None),
    ],
)
def test_rules_match_error_classes(rules: dict[str, Any], error: tuple[str, ...], rule: str | None) -> None:
    assert rule_against(RetryPolicy(**rules), error) == rule


@pytest.mark.parametrize(
    ("rules", "rule"),
    [
        ({}, None),
        ({"on": ["OSError"]}, "on: OSError"),
        ({"on_oom": "heavy"}, None),
        ({"on": ["OSError"], "on_oom": "heavy"}, None),
        ({"on_oom": "heavy", "never": ["MemoryError"]}, "never: MemoryError"),
    ],
)
def test_out_of_memory_is_retried_on_the_on_oom_queue(rules: dict[str, Any], rule: str | None) -> None:
    assert rule_against(RetryPolicy(**rules), EXHAUSTED) == rule


def test_other_errors_keep_their_queue() -> None:
    policy = RetryPolicy(on_oom={"queue": "heavy"})
    assert queue_after(policy, ("BigArrayError", "numpy.BigArrayError", *EXHAUSTED)) == "heavy"
    assert queue_after(policy, REFUSED) is None
    assert queue_after(RetryPolicy(), EXHAUSTED) is None


def test_a_requested_retry_is_granted_unless_a_rule_refuses_it() -> None:
    names = error_types(Retry("not yet"))
    assert RETRY_REQUESTED in names
    assert rule_against(RetryPolicy(on=["OSError"]), names) is None
    assert rule_against(RetryPolicy(never=["Retry"]), names) == "never: Retry"


def test_the_class_names_are_those_that_workers_report() -> None:
    assert error_types(TimeoutError()) == TIMED_OUT
    assert error_types(ConnectionRefusedError()) == REFUSED
    assert error_types(MemoryError()) == EXHAUSTED
    assert EXHAUSTED[0] == OUT_OF_MEMORY


def test_single_values_are_accepted_for_lists() -> None:
    assert RetryPolicy(on="OSError").on == ("OSError",)
    assert RetryPolicy(never="OSError").never == ("OSError",)
    assert RetryPolicy(on_oom="heavy").on_oom == OnOom(queue="heavy")


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"on": ["Connection Error"]}, "must be the name of an exception"),
        ({"on": [""]}, "must be the name of an exception"),
        ({"on": ["httpx."]}, "must be the name of an exception"),
        ({"never": ["4xx"]}, "must be the name of an exception"),
        ({"never": [404]}, "valid string"),
        ({"on": ["OSError"], "never": ["ValueError", "OSError"]}, "OSError, which is also in 'on'"),
        ({"on_oom": ""}, "at least 1 character"),
        ({"on_oom": "q" * 129}, "at most 128 characters"),
        ({"on_oom": 3}, "must be the name of a queue"),
        ({"on_oom": {}}, "Field required"),
        ({"on_oom": {"queue": "heavy", "memory": 4}}, "Extra inputs"),
    ],
)
def test_invalid_rules_are_refused(rules: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        RetryPolicy(**rules)


def workflow(policy: RetryPolicy) -> Workflow:
    nodes = {
        "start": StartNode(next=("a",)),
        "a": TaskNode(handler="h", queue="q", retry=policy, next=("end",)),
        "end": EndNode(),
    }
    return Workflow(workflow_id="w", name="w", nodes=nodes)


def test_a_definition_without_rules_keeps_its_hash() -> None:
    written = RetryPolicy().model_dump(mode="json")
    assert written.keys() == {"max_attempts", "backoff", "initial_delay_seconds", "max_delay_seconds", "jitter"}


@pytest.mark.parametrize("rules", [{"on": ["OSError"]}, {"never": ["OSError"]}, {"on_oom": "heavy"}])
def test_rules_are_pinned_with_the_definition(rules: dict[str, Any]) -> None:
    pinned = workflow(RetryPolicy(**rules))
    assert pinned.content_hash != workflow(RetryPolicy()).content_hash
    assert Workflow.model_validate_json(pinned.json_definition) == pinned


def test_an_initial_delay_above_the_default_maximum_round_trips():
    policy = RetryPolicy(initial_delay_seconds=3600)
    assert RetryPolicy.model_validate_json(policy.model_dump_json()) == policy
    assert retry_delay(policy, 1, Random(1)) == timedelta(hours=1)
    with pytest.raises(ValidationError, match="larger than"):
        RetryPolicy(initial_delay_seconds=3600, max_delay_seconds=300)
