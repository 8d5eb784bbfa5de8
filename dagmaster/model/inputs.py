"""What a job is started with, checked against what its workflow declares."""

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

from dagmaster.errors import InvalidInputs
from dagmaster.model.problems import did_you_mean
from dagmaster.model.references import describe
from dagmaster.model.sealed import holds_sealed
from dagmaster.model.workflow import InputSpec, InputType, Workflow

_ARTICLES: Final = {InputType.INTEGER: "an", InputType.ARRAY: "an", InputType.OBJECT: "an"}


class WrongInputs(InvalidInputs):
    """The inputs do not fit the workflow. All problems are in `problems`."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = list(problems)
        super().__init__("; ".join(self.problems))


class WrongType(InvalidInputs):
    """A value does not have the declared type."""


def check_inputs(workflow: Workflow, given: Mapping[str, Any], *, may_be_sealed: bool = False) -> dict[str, Any]:
    """The inputs with defaults applied; null counts as not given. Raise WrongInputs with everything that is wrong.

    Sealed secrets come only from other jobs: nobody else may have a reference opened by submitting it.
    """
    checked: dict[str, Any] = {}
    problems: list[str] = []
    if not may_be_sealed:
        problems += [f"input {name!r} looks like a sealed secret" for name, one in given.items() if holds_sealed(one)]
    for name, spec in workflow.inputs.items():
        try:
            checked[name] = _settle(name, spec, given.get(name))
        except InvalidInputs as error:
            problems.append(str(error))
    undeclared = {name: value for name, value in given.items() if name not in workflow.inputs}
    if not workflow.additional_inputs:
        problems += [_unknown(name, workflow) for name in undeclared]
    if problems:
        raise WrongInputs(problems)
    return checked | undeclared


def fit(value: Any, kind: InputType) -> Any:
    """The value as the type has it. Raise WrongType. Nothing is guessed: '3' is not a number, true is not 1."""
    match kind, value:
        case (InputType.BOOLEAN, bool()) | (InputType.STRING, str()) | (InputType.ARRAY, list()):
            return value
        case InputType.INTEGER, float() if value.is_integer():
            return int(value)
        case InputType.INTEGER | InputType.NUMBER, int() if not isinstance(value, bool):
            return value
        case InputType.NUMBER, float() if math.isfinite(value):
            return value
        case InputType.ARRAY, tuple():
            return list(value)
        case InputType.OBJECT, Mapping():
            return dict(value)
    raise WrongType(f"must be {_ARTICLES.get(kind, 'a')} {kind}, not {_show(value)}")


def input_schema(workflow: Workflow) -> dict[str, Any]:
    """What `check_inputs` accepts, as JSON Schema."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": workflow.name,
        "type": "object",
        "properties": {name: _property(spec) for name, spec in workflow.inputs.items()},
        "required": [name for name, spec in workflow.inputs.items() if spec.required],
        "additionalProperties": workflow.additional_inputs,
    }


def _settle(name: str, spec: InputSpec, value: Any) -> Any:
    if value is None and spec.required:
        raise InvalidInputs(f"input {name!r} is required ({spec.type})")
    if value is None:
        return spec.default
    try:
        return fit(value, spec.type)
    except WrongType as error:
        if spec.secret:
            raise InvalidInputs(f"input {name!r} must be a string") from None
        raise InvalidInputs(f"input {name!r} {error}") from None


def _unknown(name: str, workflow: Workflow) -> str:
    hint = did_you_mean(name, workflow.inputs)
    known = ", ".join(workflow.inputs) or "none"
    return f"input {name!r} is unknown{hint or f'; inputs are: {known}'}"


def _property(spec: InputSpec) -> dict[str, Any]:
    described: dict[str, Any] = {"type": str(spec.type) if spec.required else [str(spec.type), "null"]}
    if spec.description:
        described["description"] = spec.description
    if spec.default is not None:
        described["default"] = spec.default
    if spec.secret:
        described |= {"writeOnly": True, "format": "password"}
    return described


def _show(value: Any) -> str:
    kind, shown = describe(value), repr(value)
    return f"{kind} ({shown})" if isinstance(value, str | int | float) and len(shown) < 40 else kind
