"""The inputs of a workflow become form fields with earlier values."""

from typing import Any

import pytest

from dagmaster.model.workflow import EndNode, InputFormat, InputSpec, InputType, StartNode, Workflow
from dagmaster.web.ui.forms import Field, form_of, typed


def workflow(**inputs: InputSpec) -> Workflow:
    nodes = {"START": StartNode(next=("END",)), "END": EndNode()}
    return Workflow(workflow_id="w", name="W", inputs=inputs, nodes=nodes)


def spec(kind: InputType, default: Any = None, *, required: bool | None = None) -> InputSpec:
    return InputSpec(type=kind, default=default, required=default is None if required is None else required)


def field(input_spec: InputSpec, inputs: dict[str, Any] | None = None, name: str = "x") -> Field:
    return form_of(workflow(**{name: input_spec}), inputs).fields[0]


@pytest.mark.parametrize(
    ("input_spec", "control"),
    [
        (spec(InputType.STRING), "text"),
        (spec(InputType.STRING, "two\nlines"), "long"),
        (spec(InputType.INTEGER), "number"),
        (spec(InputType.NUMBER, 0.5), "number"),
        (spec(InputType.BOOLEAN, False), "check"),
        (spec(InputType.BOOLEAN), "choice"),
        (spec(InputType.BOOLEAN, required=False), "choice"),
        (spec(InputType.ARRAY), "json"),
        (spec(InputType.OBJECT, {}), "json"),
        (InputSpec(enum=("a", "b")), "choice"),
        (InputSpec(format=InputFormat.DATE), "date"),
        (InputSpec(format=InputFormat.DATE_TIME), "datetime-local"),
        (InputSpec(format=InputFormat.DATE_TIME, default="2026-01-31T08:30:00Z", required=False), "text"),
        (InputSpec(format=InputFormat.URI), "url"),
    ],
)
def test_each_type_has_its_control(input_spec: InputSpec, control: str) -> None:
    assert field(input_spec).control == control


def test_a_secret_input_is_a_password_field() -> None:
    assert field(spec(InputType.STRING), name="api_key").control == "secret"


def test_integers_have_step_one() -> None:
    assert (field(spec(InputType.INTEGER)).step, field(spec(InputType.NUMBER)).step) == ("1", "any")


@pytest.mark.parametrize(
    ("input_spec", "allowed"),
    [
        (InputSpec(type=InputType.INTEGER, minimum=1, maximum=10), "1 to 10"),
        (InputSpec(type=InputType.NUMBER, minimum=0.5), "0.5 or more"),
        (InputSpec(format=InputFormat.DATE), "date"),
        (InputSpec(enum=("a", "b")), ""),
        (InputSpec(), ""),
    ],
)
def test_a_field_says_what_it_accepts_unless_it_offers_choices(input_spec: InputSpec, allowed: str) -> None:
    assert field(input_spec).allowed == allowed


def test_the_default_is_prefilled_and_can_be_restored() -> None:
    control = field(spec(InputType.ARRAY, [1, 2]))
    assert (control.text, control.default, control.is_required) == ("[1, 2]", "[1, 2]", False)


def test_an_earlier_jobs_value_overrides_the_default() -> None:
    control = field(spec(InputType.INTEGER, 3), {"x": 7})
    assert (control.text, control.default) == ("7", "3")


def test_a_value_that_is_no_longer_valid_is_replaced_by_the_default() -> None:
    assert field(spec(InputType.INTEGER, 3), {"x": "seven"}).text == "3"
    assert field(spec(InputType.INTEGER), {"x": "seven"}).text == ""
    assert field(InputSpec(enum=("a", "b"), default="b", required=False), {"x": "gone"}).text == "b"


def test_secrets_of_an_earlier_job_are_not_prefilled() -> None:
    specs = {"api_key": spec(InputType.STRING, "none"), "source": spec(InputType.STRING), "x": spec(InputType.STRING)}
    inputs = {"api_key": "hunter2", "source": "postgresql://me:hunter2@db/x", "x": "seen", "more": {"token": "hunter2"}}
    form = form_of(workflow(**specs), inputs)
    assert form.hidden == ["api_key", "source", "more"]
    assert [field.text for field in form.fields] == ["", "", "seen"]
    assert "hunter2" not in repr(form)


def test_undeclared_values_are_kept() -> None:
    assert form_of(workflow(), {"free": [1]}).extra == {"free": [1]}


def test_long_values_get_several_lines() -> None:
    assert typed({"a": 1}) == '{"a": 1}'
    assert typed(["word"] * 40).count("\n") == 41
    assert typed("text as it is") == "text as it is"


def test_choices_and_limits_are_those_of_the_input() -> None:
    assert field(InputSpec(type=InputType.INTEGER, enum=(1, 2))).choices == ("1", "2")
    assert field(InputSpec(type=InputType.INTEGER, minimum=1, maximum=9)).limits == {"min": "1", "max": "9"}
