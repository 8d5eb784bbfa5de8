"""Inputs: defaults, types, and all problems at once."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagmaster.errors import InvalidInputs
from dagmaster.model.inputs import WrongInputs, check_inputs, fit, input_schema
from dagmaster.model.workflow import EndNode, InputFormat, InputSpec, InputType, StartNode, Workflow


def workflow(*, additional_inputs: bool = False, **inputs: InputSpec) -> Workflow:
    nodes = {"START": StartNode(next=("END",)), "END": EndNode()}
    return Workflow(workflow_id="w", name="W", inputs=inputs, additional_inputs=additional_inputs, nodes=nodes)


def problems(definition: Workflow, **args: Any) -> list[str]:
    with pytest.raises(InvalidInputs) as caught:
        check_inputs(definition, args)
    assert isinstance(caught.value, WrongInputs)
    return caught.value.problems


def test_defaults_are_applied_and_given_values_take_precedence() -> None:
    definition = workflow(a=InputSpec(default="x", required=False), b=InputSpec(default="y", required=False))
    assert check_inputs(definition, {"b": "z"}) == {"a": "x", "b": "z"}


def test_an_optional_input_without_default_is_null() -> None:
    assert check_inputs(workflow(a=InputSpec(required=False)), {}) == {"a": None}


def test_null_counts_as_missing() -> None:
    assert check_inputs(workflow(a=InputSpec(default="x", required=False)), {"a": None}) == {"a": "x"}
    assert problems(workflow(a=InputSpec()), a=None) == ["input 'a' is required (string)"]


def test_all_problems_are_reported_at_once() -> None:
    definition = workflow(
        size=InputSpec(type=InputType.INTEGER), name=InputSpec(), flag=InputSpec(type=InputType.BOOLEAN)
    )
    mistakes = problems(definition, size="big", flg=True, other=1)
    assert mistakes == [
        "input 'size' must be an integer, not a string ('big')",
        "input 'name' is required (string)",
        "input 'flag' is required (boolean)",
        "input 'flg' is unknown; did you mean 'flag'?",
        "input 'other' is unknown; inputs are: size, name, flag",
    ]


def test_the_message_lists_all_problems() -> None:
    with pytest.raises(InvalidInputs, match=r"input 'a' is required \(string\); input 'b' is unknown"):
        check_inputs(workflow(a=InputSpec()), {"b": 1})


def test_unknown_inputs_are_accepted_if_the_workflow_allows_them() -> None:
    definition = workflow(additional_inputs=True, a=InputSpec())
    assert check_inputs(definition, {"a": "x", "more": [1]}) == {"a": "x", "more": [1]}


def test_a_workflow_without_inputs_says_so() -> None:
    assert problems(workflow(), a=1) == ["input 'a' is unknown; inputs are: none"]


@pytest.mark.parametrize(
    ("kind", "value", "fitted"),
    [
        ("string", "", ""),
        ("integer", 3, 3),
        ("integer", 3.0, 3),
        ("integer", -0.0, 0),
        ("number", 3, 3),
        ("number", 3.5, 3.5),
        ("boolean", False, False),
        ("array", [], []),
        ("array", (1, 2), [1, 2]),
        ("object", {}, {}),
    ],
)
def test_valid_values_are_accepted(kind: str, value: Any, fitted: Any) -> None:
    result = fit(value, InputType(kind))
    assert result == fitted
    assert type(result) is type(fitted)


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        ("string", 3, "must be a string, not a number (3)"),
        ("string", None, "must be a string, not null"),
        ("integer", "3", "must be an integer, not a string ('3')"),
        ("integer", 3.5, "must be an integer, not a number (3.5)"),
        ("integer", True, "must be an integer, not a boolean (True)"),
        ("integer", float("inf"), "must be an integer, not a number (inf)"),
        ("number", True, "must be a number, not a boolean (True)"),
        ("number", float("nan"), "must be a number, not a number (nan)"),
        ("number", "1.5", "must be a number, not a string ('1.5')"),
        ("boolean", 1, "must be a boolean, not a number (1)"),
        ("boolean", "true", "must be a boolean, not a string ('true')"),
        ("array", "abc", "must be an array, not a string ('abc')"),
        ("array", {"a": 1}, "must be an array, not an object"),
        ("object", [1], "must be an object, not a list of 1"),
        ("integer", "x" * 100, "must be an integer, not a string"),
    ],
)
def test_invalid_values_are_refused(kind: str, value: Any, message: str) -> None:
    with pytest.raises(InvalidInputs) as caught:
        fit(value, InputType(kind))
    assert str(caught.value) == message


def test_the_schema_describes_the_accepted_inputs() -> None:
    definition = workflow(
        a=InputSpec(type=InputType.INTEGER, description="how many"),
        b=InputSpec(type=InputType.ARRAY, default=[1], required=False),
    )
    assert input_schema(definition) == {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "W",
        "type": "object",
        "properties": {
            "a": {"type": "integer", "description": "how many"},
            "b": {"type": ["array", "null"], "default": [1]},
        },
        "required": ["a"],
        "additionalProperties": False,
    }


VALUES = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.lists(st.integers(), max_size=2)
)


@given(st.sampled_from(list(InputType)), VALUES)
def test_validation_is_idempotent(kind: InputType, value: Any) -> None:
    try:
        once = fit(value, kind)
    except InvalidInputs:
        return
    assert fit(once, kind) == once


@given(st.dictionaries(st.sampled_from("abcd"), VALUES))
def test_accepted_inputs_have_exactly_the_declared_names(given_inputs: dict[str, Any]) -> None:
    definition = workflow(
        a=InputSpec(), b=InputSpec(required=False), c=InputSpec(type=InputType.NUMBER, required=False)
    )
    try:
        checked = check_inputs(definition, given_inputs)
    except WrongInputs as error:
        assert error.problems
    else:
        assert set(checked) == {"a", "b", "c"}


TIFF = InputSpec(format=InputFormat.FILE, extensions=(".tif", ".tiff"))
COLOUR = InputSpec(enum=("red", "green"))
SCALE = InputSpec(type=InputType.NUMBER, minimum=0.5, maximum=2)


@pytest.mark.parametrize(
    ("spec", "good", "bad", "reason"),
    [
        (COLOUR, "red", "blue", "must be one of 'red', 'green', not 'blue'"),
        (InputSpec(type=InputType.INTEGER, enum=(1, 2)), 2, 3, "must be one of 1, 2"),
        (SCALE, 0.5, 0.4, "must be at least 0.5, not 0.4"),
        (SCALE, 2, 3, "must be at most 2, not 3"),
        (InputSpec(format=InputFormat.DATE), "2026-02-28", "2026-02-30", "must be a date such as 2026-01-31"),
        (InputSpec(format=InputFormat.TIME), "08:30", "8 o'clock", "must be a time such as"),
        (InputSpec(format=InputFormat.DATE_TIME), "2026-01-31T08:30:00Z", "soon", "must be a date and time"),
        (InputSpec(format=InputFormat.UUID), "123e4567-e89b-12d3-a456-426614174000", "123", "must be a UUID"),
        (InputSpec(format=InputFormat.URI), "https://example.com/a.tif", "a b", "must be an address"),
        (InputSpec(format=InputFormat.CRS), "EPSG:4326", "WGS 84", "must be a CRS such as EPSG:4326"),
        (InputSpec(format=InputFormat.CRS), 'PROJCS["x", GEOGCS["y"]]', "4326", "must be a CRS such as EPSG:4326"),
        (InputSpec(format=InputFormat.FILE), "bronze/a.tif", " ", "must be a file of the storage"),
        (TIFF, "bronze/A.TIF", "bronze/a.png", "must be a file with the extension .tif or .tiff"),
        (TIFF, "https://example.com/a.tiff?sig=x", "https://example.com/a?name=a.tif", "with the extension"),
    ],
)
def test_limits_are_enforced(spec: InputSpec, good: Any, bad: Any, reason: str) -> None:
    assert check_inputs(workflow(x=spec), {"x": good}) == {"x": good}
    [problem] = problems(workflow(x=spec), x=bad)
    assert problem.startswith("input 'x' ")
    assert reason in problem


def test_limits_are_in_the_schema_only_if_set() -> None:
    definition = workflow(colour=COLOUR, scale=SCALE, day=InputSpec(format=InputFormat.DATE, required=False))
    described = input_schema(definition)["properties"]
    assert described["colour"] == {"type": "string", "enum": ["red", "green"]}
    assert described["scale"] == {"type": "number", "minimum": 0.5, "maximum": 2}
    pattern = input_schema(workflow(source=TIFF))["properties"]["source"]["pattern"]
    assert [bool(re.search(pattern, name)) for name in ("a.TIF", "a.tif?x", "a.png", "atif")] == [
        True,
        True,
        False,
        False,
    ]
    assert described["day"] == {"type": ["string", "null"], "format": "date"}
    assert Workflow.model_validate_json(definition.json_definition) == definition
    assert b"enum" not in workflow(plain=InputSpec()).json_definition
