from pathlib import Path
from typing import Any

import pytest

from dagmaster.cli.inputs import input_types, read_inputs
from dagmaster.errors import InvalidInputs
from dagmaster.model.inputs import check_inputs
from dagmaster.model.workflow import InputSpec, InputType, Workflow


def gather(flow: Workflow, pairs: list[str], *documents: str | None) -> dict[str, Any]:
    return check_inputs(flow, read_inputs(input_types(flow), pairs, *documents))


def workflow(*, additional_inputs: bool = False, **inputs: InputType) -> Workflow:
    specs = {name: InputSpec(type=kind, required=False) for name, kind in inputs.items()}
    return Workflow(workflow_id="w", name="w", inputs=specs, additional_inputs=additional_inputs, nodes={})


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (InputType.STRING, "3", "3"),
        (InputType.STRING, "a=b", "a=b"),
        (InputType.STRING, "", ""),
        (InputType.INTEGER, "3", 3),
        (InputType.INTEGER, "-3", -3),
        (InputType.NUMBER, "0.5", 0.5),
        (InputType.BOOLEAN, "true", True),
        (InputType.BOOLEAN, "False", False),
        (InputType.ARRAY, '[1, "a"]', [1, "a"]),
        (InputType.OBJECT, '{"a": {"b": 1}}', {"a": {"b": 1}}),
    ],
)
def test_a_single_input_is_parsed_by_its_type(kind: InputType, text: str, value: object) -> None:
    assert gather(workflow(x=kind), [f"x={text}"]) == {"x": value}


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (InputType.INTEGER, "three"),
        (InputType.NUMBER, "NaN"),
        (InputType.BOOLEAN, "yes"),
        (InputType.ARRAY, "1,2"),
        (InputType.OBJECT, "a: 1"),
    ],
)
def test_a_value_that_is_not_json_is_refused_with_an_example(kind: InputType, text: str) -> None:
    with pytest.raises(InvalidInputs, match=rf"input 'x' must be of type {kind}, not '{text}'; example: -i x="):
        gather(workflow(x=kind), [f"x={text}"])


def test_json_of_another_type_is_refused() -> None:
    with pytest.raises(InvalidInputs, match="input 'x' must be an integer"):
        gather(workflow(x=InputType.INTEGER), ["x=[1]"])


@pytest.mark.parametrize("pair", ["x", "=1", ""])
def test_an_input_needs_a_name_and_an_equals_sign(pair: str) -> None:
    with pytest.raises(InvalidInputs, match="NAME=VALUE"):
        gather(workflow(x=InputType.STRING), [pair])


def test_single_inputs_override_documents_and_later_documents_override_earlier_ones() -> None:
    flow = workflow(a=InputType.STRING, b=InputType.STRING, c=InputType.STRING)
    gathered = gather(flow, ["c=3"], '{"a": "1", "b": "1", "c": "1"}', '{"b": "2", "c": "2"}')
    assert gathered == {"a": "1", "b": "2", "c": "3"}


def test_a_document_can_be_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "inputs.json"
    path.write_text('{"x": 5}')
    assert gather(workflow(x=InputType.INTEGER), [], f"@{path}") == {"x": 5}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ('{"x": ', r"the inputs JSON is not valid JSON: .*\(line 1, column"),
        ("[1]", "the inputs JSON must be a JSON object"),
        ("@nowhere.json", "cannot read the inputs from 'nowhere.json'"),
    ],
)
def test_an_unreadable_document_is_reported_with_the_reason(document: str, message: str) -> None:
    with pytest.raises(InvalidInputs, match=message):
        gather(workflow(x=InputType.INTEGER), [], document)


def test_an_undeclared_input_is_a_string() -> None:
    assert gather(workflow(additional_inputs=True), ["y=3"]) == {"y": "3"}
    with pytest.raises(InvalidInputs, match="input 'y' is unknown"):
        gather(workflow(x=InputType.STRING), ["y=3"])
