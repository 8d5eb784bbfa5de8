"""Conversion of values between Python and JSON, on their way between tasks."""

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Literal, get_args, get_origin

import orjson
from pydantic import (
    BaseModel,
    ConfigDict,
    SerializerFunctionWrapHandler,
    TypeAdapter,
    ValidationError,
    create_model,
    model_serializer,
)

from dagmaster.errors import Invalid
from dagmaster.handlers import Permanent, encode_output
from dagmaster.model.text import shorten

Place = Callable[[Any], Any]

MAX_VALUE_BYTES = 16 * 1024 * 1024
# Bytes are encoded as base64, as in outputs of handlers; unknown classes are compared by isinstance.
CONFIG = ConfigDict(val_json_bytes="base64", ser_json_bytes="base64", arbitrary_types_allowed=True, extra="ignore")


class ObjectRef(BaseModel):
    """A reference to a table of the data plane, without its rows."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    object_type: Literal["object"] = "object"
    table_id: int | str


class ViewRef(BaseModel):
    """A reference to some rows of a table, in the order of row_id. `where` is data, never SQL."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    object_type: Literal["view"] = "view"
    table_id: int | str
    offset: int | None = None
    limit: int | None = None
    where: Any = None

    @model_serializer(mode="wrap")
    def _without_unset(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        written: dict[str, Any] = serialize(self)
        return {key: value for key, value in written.items() if value is not None}


REFERENCES: Mapping[str, type[ObjectRef] | type[ViewRef]] = {"object": ObjectRef, "view": ViewRef}


def encode(value: Any, place: Place | None = None) -> Any:
    """The value as JSON data. `place` is called first for each part, and may return a replacement.

    Raises Invalid for a value that JSON does not have.
    """
    if place is not None and (placed := place(value)) is not None:
        return placed
    match value:
        case bool() | int() | float() | None:
            return _written(value)
        case dict():
            return {_key(key): encode(item, place) for key, item in value.items()}
        case list() | tuple():
            return [encode(item, place) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: encode(getattr(value, field.name), place) for field in fields(value)}
    return _written(value)


def decode(value: Any, annotation: Any) -> Any:
    """Decode JSON data to the annotated type. Raises Invalid for a value that does not fit."""
    if is_open(annotation):
        return revive(value)
    holder = create_model("Value", __config__=CONFIG, value=(annotation, ...))
    try:
        return holder.model_validate_json(orjson.dumps({"value": value})).__dict__["value"]
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        place = ".".join(map(str, ("value", *fault["loc"][1:])))
        raise Invalid(f"{shown(annotation)} does not fit: {place}: {fault['msg']}") from error


def revive(value: Any) -> Any:
    """Restore references in data without an annotation."""
    match value:
        case {"object_type": str(kind), "table_id": _} if kind in REFERENCES:
            return _referred(REFERENCES[kind], value)
        case dict():
            return {key: revive(item) for key, item in value.items()}
        case list():
            return [revive(item) for item in value]
        case _:
            return value


def is_open(annotation: Any) -> bool:
    """Whether the annotation says nothing about the value."""
    return annotation is Any or annotation is object


def has_models(annotation: Any) -> bool:
    """Whether the annotation is or holds a dataclass or pydantic model."""
    if isinstance(annotation, type) and get_origin(annotation) is None:
        return is_dataclass(annotation) or issubclass(annotation, BaseModel)
    return any(map(has_models, get_args(annotation)))


def shown(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) and get_origin(annotation) is None else str(annotation)


def _referred(kind: type[ObjectRef] | type[ViewRef], value: dict[str, Any]) -> Any:
    try:
        return kind.model_validate(value)
    except ValidationError:
        return value  # User data that only resembles a reference.


def _written(value: Any) -> Any:
    if type(value) in (bool, float, type(None)):
        return value
    if type(value) in (str, int):
        return _storable(value)
    try:
        return orjson.loads(encode_output(value, MAX_VALUE_BYTES))
    except Permanent:
        pass  # Perhaps a class that pydantic can encode.
    try:
        return TypeAdapter(type(value), config=CONFIG).dump_python(value, mode="json")
    except (TypeError, ValueError) as error:
        hint = f". Is the call of {value!r} missing?" if callable(value) else ""
        raise Invalid(
            f"a {type(value).__name__} cannot be passed to a task: pass JSON data, dataclasses, pydantic models, "
            f"enums, times or paths, or store it and pass where it is{hint}"
        ) from error


def _storable(value: str | int) -> str | int:
    try:
        orjson.dumps(value)
    except TypeError as error:  # An integer of more than 64 bits, or a lone surrogate.
        raise Invalid(f"{shorten(repr(value))} cannot be passed to a task: {error}") from None
    return value


def _key(key: Any) -> str:
    match key:
        case str():
            return key
        case bool() | int() | float() | None:
            return orjson.dumps(key).decode()
        case _:
            return str(_written(key))
