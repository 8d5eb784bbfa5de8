"""Conversion of values between Python and JSON, on their way between tasks."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any, get_args, get_origin

import orjson
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, create_model

from dagmaster import data
from dagmaster.data.current import find_tables
from dagmaster.data.references import Referable, find_reference
from dagmaster.errors import Invalid
from dagmaster.handlers import Permanent, encode_output
from dagmaster.model.problems import shorten

Place = Callable[[Any], Any]

MAX_VALUE_BYTES = 16 * 1024 * 1024
# Bytes are encoded as base64, as in outputs of handlers; unknown classes are compared by isinstance.
CONFIG = ConfigDict(val_json_bytes="base64", ser_json_bytes="base64", arbitrary_types_allowed=True, extra="ignore")


def encode(value: Any, place: Place | None = None) -> Any:
    """The value as JSON data. `place` is called first for each part, and may return a replacement.

    Raises Invalid for a value that JSON cannot represent.
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
        case Referable():
            return passed_on(value)
        case BaseModel():
            for table in _tables_in(value):
                passed_on(table)
    if _is_record(value):
        return {field.name: encode(getattr(value, field.name), place) for field in fields(value)}
    return _written(value)


def decode(value: Any, annotation: Any) -> Any:
    """Decode JSON data to the annotated type. Raises Invalid for a value of another type."""
    if is_open(annotation):
        return revive(value)
    holder = create_model("Value", __config__=CONFIG, value=(annotation, ...))
    try:
        return holder.model_validate_json(orjson.dumps({"value": value})).__dict__["value"]
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        place = ".".join(map(str, ("value", *fault["loc"][1:])))
        raise Invalid(f"{type_name(annotation)} does not fit: {place}: {fault['msg']}") from error


def revive(value: Any) -> Any:
    """Restore references in data without an annotation, as tables if the extra `data` is installed."""
    if (reference := find_reference(value)) is not None:
        return data.View.from_reference(reference) if _has_tables() else reference
    match value:
        case dict():
            return {key: revive(item) for key, item in value.items()}
        case list():
            return [revive(item) for item in value]
        case _:
            return value


def passed_on(table: Referable) -> dict[str, Any]:
    """The table's reference. The tables that it reads are kept for the receiving task."""
    if (tables := find_tables()) is not None:
        tables.pass_on(table.plan)
    return table.reference().model_dump(mode="json")


def with_references(value: Any) -> Any:
    """The value with references instead of tables."""
    match value:
        case Referable():
            return passed_on(value)
        case dict():
            return {key: with_references(item) for key, item in value.items()}
        case list():
            return [with_references(item) for item in value]
        case tuple() if type(value) is tuple:
            return tuple(map(with_references, value))
        case BaseModel():
            for table in _tables_in(value):
                passed_on(table)
            return value
        case _ if _is_record(value) and next(_tables_in(value), None) is not None:
            return {field.name: with_references(getattr(value, field.name)) for field in fields(value)}
        case _:
            return value


def _is_record(value: Any) -> bool:
    return is_dataclass(value) and not isinstance(value, type)


def _tables_in(value: Any) -> Iterator[Referable]:
    parts: Iterable[Any] = ()
    match value:
        case Referable():
            yield value
        case dict():
            parts = value.values()
        case list() | tuple():
            parts = value
        case BaseModel():
            parts = vars(value).values()
        case _ if _is_record(value):
            parts = [getattr(value, field.name) for field in fields(value)]
    for part in parts:
        yield from _tables_in(part)


def is_arrow_table(annotation: Any) -> bool:
    """Compares names, because the core does not load Arrow."""
    return getattr(annotation, "__module__", "") == "pyarrow.lib" and getattr(annotation, "__name__", "") == "Table"


def is_open(annotation: Any) -> bool:
    """Whether the annotation accepts any value."""
    return annotation is Any or annotation is object


def has_models(annotation: Any) -> bool:
    """Whether the annotation is or contains a dataclass or pydantic model."""
    if isinstance(annotation, type) and get_origin(annotation) is None:
        return is_dataclass(annotation) or issubclass(annotation, BaseModel)
    return any(map(has_models, get_args(annotation)))


def type_name(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) and get_origin(annotation) is None else str(annotation)


@cache
def _has_tables() -> bool:
    return find_spec("pyarrow") is not None


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
