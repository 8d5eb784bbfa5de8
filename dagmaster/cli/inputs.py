"""Parse the inputs of a job from the command line."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from dagmaster.errors import InvalidInputs
from dagmaster.model.workflow import InputType, Workflow

EXAMPLES: Mapping[InputType, str] = {
    InputType.INTEGER: "3",
    InputType.NUMBER: "0.5",
    InputType.BOOLEAN: "true",
    InputType.ARRAY: "'[1, 2, 3]'",
    InputType.OBJECT: """'{"key": "value"}'""",
}


def input_types(workflow: Workflow) -> dict[str, InputType]:
    return {name: spec.type for name, spec in workflow.inputs.items()}


def read_inputs(types: Mapping[str, InputType], pairs: Sequence[str], *documents: str | None) -> dict[str, Any]:
    """Single inputs take precedence over documents."""
    inputs: dict[str, Any] = {}
    for document in documents:
        inputs |= _read_document(document) if document is not None else {}
    return inputs | dict(_read_pair(pair, types) for pair in pairs)


def read_json(text: str, label: str) -> Any:
    """Any value, not only an object."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidInputs(f"{label} is not valid JSON: {error.msg}; quote strings: '\"yes\"'") from None


def _read_pair(pair: str, types: Mapping[str, InputType]) -> tuple[str, Any]:
    name, equals, text = pair.partition("=")
    name = name.strip()
    if not equals or not name:
        raise InvalidInputs(f"inputs must have the form NAME=VALUE, not {pair!r}")
    kind = types.get(name, InputType.STRING)
    if kind is InputType.STRING:
        return name, text
    try:
        return name, orjson.loads(text.lower() if kind is InputType.BOOLEAN else text)
    except orjson.JSONDecodeError:
        example = f"-i {name}={EXAMPLES[kind]}"
        raise InvalidInputs(f"input {name!r} must be of type {kind}, not {text!r}; example: {example}") from None


def _read_document(text: str) -> dict[str, Any]:
    origin = "the inputs JSON"
    if text.startswith("@"):
        origin, text = text[1:], _read_file(text[1:])
    try:
        document = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise InvalidInputs(f"{origin} is not valid JSON: {error.msg} ({place})") from None
    if not isinstance(document, dict):
        raise InvalidInputs(f'{origin} must be a JSON object such as {{"name": "value"}}')
    return document


def _read_file(name: str) -> str:
    try:
        return sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputs(f"cannot read the inputs from {name!r}: {error}") from error
