"""The inputs of a job, validated against the declarations of its workflow."""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time
from typing import Any, Final
from urllib.parse import urlsplit
from uuid import UUID

from dagmaster.errors import InvalidInputs
from dagmaster.model.problems import did_you_mean
from dagmaster.model.references import describe
from dagmaster.model.sealed import holds_sealed
from dagmaster.model.workflow import InputFormat, InputSpec, InputType, Workflow

_ARTICLES: Final = {InputType.INTEGER: "an", InputType.ARRAY: "an", InputType.OBJECT: "an"}


class WrongInputs(InvalidInputs):
    """The inputs do not fit the workflow. All problems are in `problems`."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = list(problems)
        super().__init__("; ".join(self.problems))


class WrongType(InvalidInputs):
    """The value does not have the declared type."""


def check_inputs(
    workflow: Workflow, values: Mapping[str, Any], *, may_be_sealed: bool = False, known_problems: Iterable[str] = ()
) -> dict[str, Any]:
    """Apply the defaults; null counts as not given. Raise WrongInputs with all problems.

    `known_problems` are problems that the caller has found. Only other jobs may pass sealed secrets: otherwise a caller
    could have a secret opened by submitting its reference.
    """
    checked: dict[str, Any] = {}
    problems = list(known_problems)
    if not may_be_sealed:
        problems += [
            f"input {name!r} looks like a sealed secret" for name, value in values.items() if holds_sealed(value)
        ]
    for name, spec in workflow.inputs.items():
        try:
            checked[name] = _settle(name, spec, values.get(name))
        except InvalidInputs as error:
            problems.append(str(error))
    undeclared = {name: value for name, value in values.items() if name not in workflow.inputs}
    if not workflow.additional_inputs:
        problems += [_unknown(name, workflow) for name in undeclared]
    if problems:
        raise WrongInputs(problems)
    return checked | undeclared


def fit(value: Any, kind: InputType) -> Any:
    """Convert the value to the type. Raise WrongType. Nothing is guessed: '3' is not a number, true is not 1."""
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


def accept(value: Any, spec: InputSpec) -> Any:
    """Convert and validate the value. Raise WrongType if the input does not accept it."""
    fitted = fit(value, spec.type)
    if spec.enum and not any(type(fitted) is type(choice) and fitted == choice for choice in spec.enum):
        raise WrongType(f"must be one of {', '.join(map(repr, spec.enum))}, not {_brief(value)}")
    if spec.minimum is not None and fitted < spec.minimum:
        raise WrongType(f"must be at least {spec.minimum:g}, not {fitted}")
    if spec.maximum is not None and fitted > spec.maximum:
        raise WrongType(f"must be at most {spec.maximum:g}, not {fitted}")
    if spec.format is not None and not _has_format(fitted, spec.format):
        raise WrongType(f"must be {_FORMATS[spec.format][1]}, not {_brief(value)}")
    if spec.extensions and not _path_of(fitted).lower().endswith(spec.extensions):
        raise WrongType(f"must be a file with the extension {' or '.join(spec.extensions)}, not {_brief(value)}")
    return fitted


def find_wrong_limits(spec: InputSpec) -> str | None:
    """The problem with the limits themselves, or None."""
    limits = [limit for limit in (spec.minimum, spec.maximum) if limit is not None]
    if limits and spec.type not in (InputType.INTEGER, InputType.NUMBER):
        return f"'minimum' and 'maximum' are for numbers, and its type is {spec.type}"
    if len(limits) == 2 and limits[0] > limits[1]:
        return f"its minimum ({limits[0]:g}) is above its maximum ({limits[1]:g})"
    if spec.format is not None and spec.type is not InputType.STRING:
        return f"'format' is for strings, and its type is {spec.type}"
    if spec.extensions and spec.format is not InputFormat.FILE:
        return "'extensions' are for inputs with `format: file`"
    for choice in spec.enum:
        try:
            fit(choice, spec.type)
        except WrongType as error:
            return f"each value of its 'enum' {error}"
    return None


def _has_format(text: str, kind: InputFormat) -> bool:
    try:
        return bool(_FORMATS[kind][0](text))
    except ValueError:
        return False


def _path_of(reference: str) -> str:
    """The path of a URL, without its query."""
    return reference.partition("?")[0] if "://" in reference else reference


# An authority with a code, or WKT 1 or 2.
_CRS: Final = re.compile(
    r"[A-Za-z][A-Za-z0-9_-]*:[A-Za-z0-9_.-]+$|[A-Z]{3,}(CRS|CS|_CS)\[|(GEODETIC|PROJECTED|COMPOUND)[A-Z]*\["
)


def _is_uri(text: str) -> bool:
    parts = urlsplit(text)
    return bool(parts.scheme and (parts.netloc or parts.path)) and not any(letter.isspace() for letter in text)


# A function that returns nothing or raises ValueError for a string in another format, and an example.
_FORMATS: Final[Mapping[InputFormat, tuple[Callable[[str], object], str]]] = {
    InputFormat.DATE: (date.fromisoformat, "a date such as 2026-01-31"),
    InputFormat.TIME: (time.fromisoformat, "a time such as 08:30:00"),
    InputFormat.DATE_TIME: (datetime.fromisoformat, "a date and time such as 2026-01-31T08:30:00+01:00"),
    InputFormat.UUID: (UUID, "a UUID such as 123e4567-e89b-12d3-a456-426614174000"),
    InputFormat.URI: (_is_uri, "an address such as https://example.com/data.tif"),
    InputFormat.CRS: (lambda text: _CRS.match(text.strip()), "a CRS such as EPSG:4326, or its WKT"),
    InputFormat.FILE: (
        lambda text: text.strip() and text.isprintable(),
        "a file of the storage such as bronze/rivers.tif",
    ),
}


def input_schema(workflow: Workflow) -> dict[str, Any]:
    """The JSON Schema of the inputs that `check_inputs` accepts."""
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
        return accept(value, spec)
    except WrongType as error:
        if spec.secret:
            raise InvalidInputs(
                f"input {name!r} must be a string that satisfies the workflow's 'enum' and 'format'"
            ) from None
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
    if spec.enum:
        described["enum"] = [*spec.enum] if spec.required else [*spec.enum, None]
    for name in ("minimum", "maximum", "format"):
        if (limit := getattr(spec, name)) is not None:
            described.setdefault(name, limit)
    if spec.extensions:
        described["pattern"] = rf"(?i)({'|'.join(map(re.escape, spec.extensions))})(\?|$)"
    return described


def _brief(value: Any) -> str:
    """A value of the right type."""
    written = repr(value)
    return written if len(written) < 40 else describe(value)


def _show(value: Any) -> str:
    kind, written = describe(value), repr(value)
    return f"{kind} ({written})" if isinstance(value, str | int | float) and len(written) < 40 else kind
