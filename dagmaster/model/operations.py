"""The operators, filters, tests and methods of expressions, with bounds on their results."""

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import orjson
from jinja2 import Undefined
from jinja2.filters import FILTERS as JINJA_FILTERS
from jinja2.filters import do_float, do_int, do_round
from jinja2.tests import TESTS as JINJA_TESTS

from dagmaster.errors import ExpressionFailed
from dagmaster.model.references import describe

MAX_TEXT_CHARS: Final = 1024 * 1024
MAX_LIST_ITEMS: Final = 1_000_000
MAX_INTEGER: Final = 2**63 - 1
MAX_POWER_BITS: Final = 4096


def to_text(value: Any) -> str:
    """Convert a value to a part of a longer string."""
    match value:
        case str():
            return value
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case int() | float():
            return str(value)
        case _:
            return _to_json(value)


def to_plain(value: Any) -> Any:
    """Only JSON leaves an expression: lazy results of Jinja become lists."""
    match need_defined(value):
        case None | bool() | int() | float() | str() | dict():
            return value
        case Iterator() | tuple() | list():
            return [item if isinstance(item, _PLAIN_TYPES) else to_plain(item) for item in value]
        case Mapping():
            return dict(value)
        case _:
            raise TypeError("the result is not plain data")


_PLAIN_TYPES: Final = (str, int, float, dict, list, type(None))


def need_defined(value: Any) -> Any:
    if isinstance(value, Undefined):
        value._fail_with_undefined_error()
    return value


def join_bounded(texts: list[str], separator: str = "") -> str:
    _check_length(sum(map(len, texts)) + len(separator) * len(texts))
    return separator.join(texts)


def _need_numbers(operation: str, *values: Any) -> None:
    for value in map(to_plain, values):
        if not isinstance(value, int | float):
            raise TypeError(f"{operation} needs numbers, not {describe(value)}")


def check_number(value: Any) -> Any:
    if isinstance(value, int | float) and not is_storable(value):
        raise ValueError("the number is too large")
    return value


def is_storable(number: int | float) -> bool:
    """JSON and the database hold 64 bits, and neither infinity nor NaN."""
    return -MAX_INTEGER <= number <= MAX_INTEGER if isinstance(number, int) else math.isfinite(number)


def _check_length(chars: int) -> None:
    if chars > MAX_TEXT_CHARS:
        raise ExpressionFailed(f"the string would have more than {MAX_TEXT_CHARS} characters")


def _add(left: Any, right: Any) -> Any:
    if isinstance(left, str) and isinstance(right, str):
        return join_bounded([left, right])
    if not isinstance(left, list) or not isinstance(right, list):
        _need_numbers("+", left, right)
    elif len(left) + len(right) > MAX_LIST_ITEMS:
        raise ValueError(f"the list would have more than {MAX_LIST_ITEMS} items")
    return left + right


def _power(left: Any, right: Any) -> Any:
    _need_numbers("**", left, right)
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() * abs(right) > MAX_POWER_BITS:
        raise ValueError("the number is too large")
    if left < 0 and not float(right).is_integer():
        raise ValueError("a negative number cannot be raised to this power")
    return left**right


def _numeric(sign: str, compute: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def apply(left: Any, right: Any) -> Any:
        _need_numbers(sign, left, right)
        return compute(left, right)

    return apply


OPERATORS: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "+": _add,
    "-": _numeric("-", operator.sub),
    "*": _numeric("*", operator.mul),
    "/": _numeric("/", operator.truediv),
    "//": _numeric("//", operator.floordiv),
    "%": _numeric("%", operator.mod),
    "**": _power,
}


# Filters, tests and methods


def _join(values: Iterable[Any], separator: str = "") -> str:
    return join_bounded([to_text(value) for value in values], separator)


def _replace(value: Any, old: str, new: str) -> str:
    text = to_text(value)
    _check_length(len(text) + text.count(old) * len(new))
    return text.replace(old, new)


def _round(value: Any, precision: int = 0, method: Any = "common") -> Any:
    _need_numbers("round", value, precision)
    return do_round(value, max(-20, min(precision, 20)), method)


def _sum(values: Iterable[Any]) -> Any:
    numbers = list(values)
    _need_numbers("sum", *numbers)
    return check_number(sum(numbers))


def _to_json(value: Any) -> str:
    return orjson.dumps(to_plain(value), default=to_plain, option=orjson.OPT_NON_STR_KEYS).decode()


_JINJA_FILTERS: Final = (
    *("default", "d", "length", "count", "abs", "min", "max", "first", "last", "sort", "unique"),
    *("reverse", "list", "map", "select", "reject", "selectattr", "rejectattr"),
)
FILTERS: Final[Mapping[str, Callable[..., Any]]] = {
    **{name: JINJA_FILTERS[name] for name in _JINJA_FILTERS},
    "upper": lambda value: to_text(value).upper(),
    "lower": lambda value: to_text(value).lower(),
    "title": lambda value: to_text(value).title(),
    "capitalize": lambda value: to_text(value).capitalize(),
    "trim": lambda value, chars=None: to_text(value).strip(chars),
    "string": to_text,
    "int": lambda value, *args, **options: check_number(do_int(value, *args, **options)),
    "float": lambda value, *args, **options: check_number(do_float(value, *args, **options)),
    "join": _join,
    "replace": _replace,
    "round": _round,
    "sum": _sum,
    "tojson": _to_json,
}
TESTS: Final = {
    name: JINJA_TESTS[name]
    for name in (
        *("defined", "undefined", "none", "boolean", "true", "false", "integer", "float", "number", "string"),
        *("mapping", "sequence", "even", "odd", "divisibleby", "in", "eq", "equalto", "ne", "lt", "le", "gt", "ge"),
    )
}
# None of them returns a string much longer than its input.
METHODS: Final = frozenset(
    {"upper", "lower", "title", "capitalize", "strip", "lstrip", "rstrip", "split", "rsplit", "splitlines"}
    | {"startswith", "endswith", "removeprefix", "removesuffix", "find", "count", "isdigit", "isalpha", "isalnum"}
)
