"""The parameters of a workflow function as the inputs of its workflow."""

import inspect
import types
from collections.abc import Mapping, Sequence, Set
from dataclasses import is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Annotated, Any, Literal, Union, get_args, get_origin, is_typeddict
from uuid import UUID

from pydantic import BaseModel, SecretStr

from dagmaster.errors import Misconfigured
from dagmaster.model.workflow import InputFormat, InputSpec, InputType
from dagmaster.python.signatures import EMPTY, Kind, Signature
from dagmaster.python.values import encode, type_name

# Ordered: a bool is also an int.
TYPES: Sequence[tuple[InputType, tuple[type, ...]]] = (
    (InputType.BOOLEAN, (bool,)),
    (InputType.INTEGER, (int,)),
    (InputType.NUMBER, (float, Decimal, timedelta)),
    (InputType.STRING, (str, SecretStr, bytes, datetime, date, time, UUID, PurePath)),
    (InputType.OBJECT, (Mapping, BaseModel)),
    (InputType.ARRAY, (Sequence, Set)),
)


FORMATS: Mapping[type, InputFormat] = {
    date: InputFormat.DATE,
    time: InputFormat.TIME,
    datetime: InputFormat.DATE_TIME,
    UUID: InputFormat.UUID,
}


def inputs_of(signature: Signature) -> dict[str, InputSpec]:
    """The inputs of a workflow. Raises Misconfigured for a parameter of an unsupported type."""
    return {parameter.name: _input(parameter, signature) for parameter in signature.parameters}


def _input(parameter: inspect.Parameter, signature: Signature) -> InputSpec:
    title = f"the parameter {parameter.name!r} of workflow {signature.function.__qualname__!r}"
    if parameter.kind in (Kind.VAR_KEYWORD, Kind.VAR_POSITIONAL):
        raise Misconfigured(f"{title} has no name for an input; a workflow takes named parameters only")
    default = None if parameter.default is EMPTY else encode(parameter.default)
    annotation, may_be_none = _without_none(signature.hints[parameter.name])
    kind = _type_of(type(parameter.default)) if annotation is Any and default is not None else _type_of(annotation)
    if kind is None:
        hint = "annotate it" if annotation is Any else f"{type_name(annotation)} is none"
        raise Misconfigured(f"{title} needs a type that an input can have; {hint}: str, int, float, bool, list, dict")
    return InputSpec(
        type=kind,
        required=parameter.default is EMPTY and not may_be_none,
        default=default,
        secret=annotation is SecretStr,
        enum=_choices_of(annotation),
        format=next((name for plain, name in FORMATS.items() if annotation is plain), None),
        **_limits_of(signature.hints[parameter.name], kind),
    )


def _choices_of(hint: Any) -> tuple[Any, ...]:
    if get_origin(hint) is Literal:
        return tuple(encode(choice) for choice in get_args(hint))
    if isinstance(hint, type) and issubclass(hint, Enum):
        return tuple(encode(choice) for choice in hint)
    return ()


def _limits_of(hint: Any, kind: InputType) -> dict[str, int | float]:
    """The limits in `Annotated`, from annotated-types or Pydantic's `Field(ge=..., le=...)`."""
    limits: dict[str, int | float] = {}
    if get_origin(hint) is not Annotated or kind not in (InputType.INTEGER, InputType.NUMBER):
        return limits
    annotations = get_args(hint)[1:]
    constraints = [item for note in annotations for item in (note, *getattr(note, "metadata", ()))]
    for constraint in constraints:
        for attribute, name in (("ge", "minimum"), ("le", "maximum")):
            if isinstance(limit := getattr(constraint, attribute, None), int | float):
                limits[name] = limit
    return limits


def _without_none(hint: Any) -> tuple[Any, bool]:
    while get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    if get_origin(hint) not in (Union, types.UnionType):
        return hint, False
    members = [member for member in get_args(hint) if member is not type(None)]
    kinds = {_type_of(member) for member in members}
    merged = members[0] if len(kinds) == 1 else float if kinds == {InputType.INTEGER, InputType.NUMBER} else hint
    return merged, len(members) < len(get_args(hint))


def _type_of(hint: Any) -> InputType | None:
    if get_origin(hint) is Literal:
        kinds = {_type_of(type(choice)) for choice in get_args(hint)}
        return kinds.pop() if len(kinds) == 1 else None
    plain = get_origin(hint) or hint
    if not isinstance(plain, type):
        return None
    if issubclass(plain, Enum):
        kinds = {_type_of(type(member.value)) for member in plain}
        return kinds.pop() if len(kinds) == 1 else None
    if is_dataclass(plain) or is_typeddict(plain):
        return InputType.OBJECT
    return next((kind for kind, classes in TYPES if issubclass(plain, classes)), None)
