"""ClickHouse types of Python values, and the values as text of query parameters."""

import re
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from dagmaster.errors import Invalid

# A type is used inside `{name:Type}`: without braces it cannot end that placeholder.
TYPE = re.compile(r"[A-Za-z][A-Za-z0-9_ ,()'/+-]*")
INTEGERS = (("Int64", -(1 << 63), (1 << 63) - 1), ("UInt64", 0, (1 << 64) - 1), ("Int128", -(1 << 127), (1 << 127) - 1))
ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r", "\0": "\\0", "\b": "\\b", "\f": "\\f"})
QUOTED_ESCAPES = {**ESCAPES, ord("'"): "\\'"}
NOT_NULLABLE = ("Array(", "Map(", "Tuple(", "Nullable(", "LowCardinality(")


def check_type(name: str) -> str:
    """Raises Invalid for an invalid type name."""
    if len(name) > 1000 or TYPE.fullmatch(name) is None:
        raise Invalid(f"{name[:80]!r} is not a ClickHouse type, such as Int64, Nullable(String) or Array(Float64)")
    return name


def nullable(name: str) -> str:
    """The nullable type. Arrays, maps and tuples cannot be nullable in ClickHouse."""
    return name if name.startswith(NOT_NULLABLE) else f"Nullable({name})"


def type_of(value: Any) -> str:
    """Raises Invalid for values that cannot be query parameters."""
    match value:
        case bool():
            return "Bool"
        case int():
            return _integer_type(value)
        case float():
            return "Float64"
        case str() | bytes():
            return "String"
        case datetime():
            return "DateTime64(6, 'UTC')"
        case date():
            return "Date32"
        case Decimal() if value.is_finite():
            return _decimal_type(value)
        case UUID():
            return "UUID"
        case list() | tuple():
            return f"Array({_common_type(value)})"
    raise Invalid(
        f"a {type(value).__name__} cannot be used in an expression: use a number, a string, a date, a time, "
        "a UUID or a list of them"
    )


def text_of(value: Any) -> str:
    """The value in ClickHouse's notation of query parameters."""
    match value:
        case str() | bytes():
            return _decoded(value).translate(ESCAPES)
        case list() | tuple():
            return f"[{','.join(map(_quoted, value))}]"
        case _:
            return _plain(value)


def _integer_type(value: int) -> str:
    for name, least, most in INTEGERS:
        if least <= value <= most:
            return name
    raise Invalid(f"{value} has more than 128 bits")


def _decimal_type(value: Decimal) -> str:
    _, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    scale = max(0, -exponent)
    precision = max(len(digits) + max(0, exponent), scale, 1)
    if precision > 76:
        raise Invalid(f"{value} has more than 76 digits")
    return f"Decimal({precision}, {scale})"


def _common_type(values: Sequence[Any]) -> str:
    # An empty list fits lists of any type.
    kinds = {type_of(value) for value in values if value not in (None, [], ())}
    if kinds <= {"Int64", "Float64"} and len(kinds) == 2:
        kinds = {"Float64"}
    if len(kinds) > 1:
        raise Invalid(f"a list in an expression holds values of one type, not {', '.join(sorted(kinds))}")
    if not kinds:
        kinds = {"Array(String)" if any(value is not None for value in values) else "String"}
    kind = kinds.pop()
    return nullable(kind) if any(value is None for value in values) else kind


def _quoted(value: Any) -> str:
    match value:
        case None:
            return "NULL"
        case str() | bytes():
            return f"'{_decoded(value).translate(QUOTED_ESCAPES)}'"
        case date() | UUID():
            return f"'{_plain(value)}'"
        case list() | tuple():
            return text_of(value)
        case _:
            return _plain(value)


def _plain(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case datetime():
            moment = value.astimezone(UTC) if value.tzinfo else value
            return moment.strftime("%Y-%m-%d %H:%M:%S.%f")
        case date():
            return value.isoformat()
        case Decimal():
            return format(value, "f")
        case _:
            return str(value)


def _decoded(value: str | bytes) -> str:
    try:
        return value.decode() if isinstance(value, bytes) else value
    except UnicodeDecodeError as error:
        raise Invalid("bytes in an expression must be UTF-8") from error
