"""Comparisons in conditions: typed; a string is read as a number or boolean only if the other side is one."""

import operator
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from dagmaster.model.operations import to_text
from dagmaster.model.references import describe

Warn = Callable[[str], None]
Compare = Callable[[Any, Any, Warn], bool]

_INTEGER = re.compile(r"[+-]?\d{1,300}")
_FLOAT = re.compile(r"[+-]?(\d{1,300}\.?\d{0,300}|\.\d{1,300})([eE][+-]?\d{1,3})?")
_BOOLEANS: Final = {"true": True, "false": False}
_FALSE_TEXTS: Final = frozenset({"", "false", "0", "no", "none", "null"})


def read_literal(text: str) -> Any:
    """An unquoted literal: integer, number, boolean, null, or else the string itself."""
    if text.lower() in ("none", "null"):
        return None
    for value in (_find_number(text), _BOOLEANS.get(text.lower())):
        if value is not None:
            return value
    return text


def is_true(value: Any) -> bool:
    """The truth of a value on its own: strings such as `no`, `0` and `none` are false."""
    return value.strip().lower() not in _FALSE_TEXTS if isinstance(value, str) else bool(value)


def are_equal(left: Any, right: Any) -> bool:
    left, right = _align(left, right)
    return bool(left == right)


def _ordered(symbol: str, compare: Callable[[Any, Any], bool]) -> Compare:
    def check(left: Any, right: Any, warn: Warn) -> bool:
        first, second = _align(left, right)
        if (_is_number(first) and _is_number(second)) or (isinstance(first, str) and isinstance(second, str)):
            return compare(first, second)
        return _incomparable(left, symbol, right, warn)

    return check


def _incomparable(left: Any, operator: str, right: Any, warn: Warn) -> bool:
    warn(f"{describe(left)} {operator} {describe(right)} cannot be compared and counts as false")
    return False


def _contains(container: Any, item: Any, warn: Warn) -> bool:
    match container:
        case str() if item is not None:
            return to_text(item) in container
        case list() | tuple():
            return any(are_equal(item, member) for member in container)
        case Mapping():
            return to_text(item) in container
        case _:
            warn(f"{describe(container)} cannot contain {describe(item)}; this counts as false")
            return False


def _not_in(left: Any, right: Any, warn: Warn) -> bool:
    warned: list[str] = []
    contains = _contains(right, left, warned.append)
    for warning in warned:
        warn(warning)
    return not contains and not warned


def _textual(name: str, compare: Callable[[str, str], bool]) -> Compare:
    def check(left: Any, right: Any, warn: Warn) -> bool:
        if isinstance(left, str | int | float) and isinstance(right, str | int | float):
            return compare(to_text(left), to_text(right))
        return _incomparable(left, name, right, warn)

    return check


COMPARISONS: Final[Mapping[str, Compare]] = {
    "==": lambda left, right, warn: are_equal(left, right),
    "!=": lambda left, right, warn: not are_equal(left, right),
    "<": _ordered("<", operator.lt),
    ">": _ordered(">", operator.gt),
    "<=": _ordered("<=", operator.le),
    ">=": _ordered(">=", operator.ge),
    "in": lambda left, right, warn: _contains(right, left, warn),
    "not_in": _not_in,
    "contains": _contains,
    "starts_with": _textual("starts_with", str.startswith),
    "ends_with": _textual("ends_with", str.endswith),
}


def _align(left: Any, right: Any) -> tuple[Any, Any]:
    """A string compared with a number or boolean is converted if it looks like one."""
    if isinstance(left, str) and not isinstance(right, str):
        return _read_as(left, right), right
    if isinstance(right, str) and not isinstance(left, str):
        return left, _read_as(right, left)
    return left, right


def _read_as(text: str, other: Any) -> Any:
    if isinstance(other, bool):
        return _BOOLEANS.get(text.strip().lower(), text)
    number = _find_number(text.strip()) if isinstance(other, int | float) else None
    return text if number is None else number


def _find_number(text: str) -> int | float | None:
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
