"""CQL2 filters as conditions of PostgreSQL's jsonpath, with all values as variables.

A property that an item does not have is null, and a comparison with null is neither true nor false: its negation does
not hold either. Negations are moved to the comparisons, where they become the opposite comparison.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import orjson

from dagmaster.errors import Invalid
from dagmaster.web.cql2_text import MAX_DEPTH

MAX_VALUES: Final = 500
MAX_PROPERTY_CHARS: Final = 200
MAX_PATTERN_CHARS: Final = 200
MAX_WILDCARDS: Final = 10
OPPOSITES: Final = {"==": "!=", "!=": "==", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}
MIRRORED: Final = {"==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
COMPARISONS: Final = {"=": "==", "<>": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
# Fields of the item itself; all others are among its properties.
OWN_FIELDS: Final = frozenset({"id", "collection"})


@dataclass(frozen=True, slots=True)
class ItemCondition:
    """`path` is a jsonpath predicate on the item; `values` are its variables."""

    path: str
    values: dict[str, Any]


def compile_filter(expression: Any) -> ItemCondition:
    """Compile CQL2 JSON. Raises Invalid."""
    compiler = _Compiler()
    path = compiler.predicate(expression, True, 0)
    return ItemCondition(path, compiler.values)


def property_path(name: str) -> list[str]:
    """The path of a property in an item."""
    plain = name.removeprefix("properties.")
    if not plain or len(plain) > MAX_PROPERTY_CHARS or not plain.isprintable():
        raise Invalid(f"a property has a name of 1 to {MAX_PROPERTY_CHARS} printable characters")
    return [plain] if plain in OWN_FIELDS else ["properties", plain]


@dataclass(slots=True)
class _Compiler:
    values: dict[str, Any] = field(default_factory=dict)

    def predicate(self, expression: Any, is_true: bool, depth: int) -> str:
        """A predicate that holds if the expression is true, or if it is false."""
        if depth > MAX_DEPTH:
            raise Invalid(f"filter: more than {MAX_DEPTH} levels")
        operator, arguments = _operation(expression)
        if operator in ("and", "or"):
            parts = [self.predicate(argument, is_true, depth + 1) for argument in arguments]
            if not parts:
                raise Invalid(f"filter: {operator!r} takes conditions")
            return f"({(' && ' if (operator == 'and') is is_true else ' || ').join(parts)})"
        if operator == "not":
            [inner] = _exactly(operator, arguments, 1)
            return self.predicate(inner, not is_true, depth + 1)
        if operator in COMPARISONS:
            left, right = _exactly(operator, arguments, 2)
            return self._comparison(COMPARISONS[operator], left, right, is_true)
        return self._advanced(operator, arguments, is_true)

    def _advanced(self, operator: str, arguments: Sequence[Any], is_true: bool) -> str:
        match operator:
            case "isNull":
                [operand] = _exactly(operator, arguments, 1)
                has_value = _has_value(_property(operand))
                return f"!{has_value}" if is_true else has_value
            case "between":
                operand, low, high = _exactly(operator, arguments, 3)
                bounds = [{"op": ">=", "args": [operand, low]}, {"op": "<=", "args": [operand, high]}]
                return self.predicate({"op": "and", "args": bounds}, is_true, 0)
            case "in":
                operand, members = _exactly(operator, arguments, 2)
                if not isinstance(members, list) or not members:
                    raise Invalid("filter: 'in' takes a property and a list of values")
                equalities = [{"op": "=", "args": [operand, member]} for member in members]
                return self.predicate({"op": "or", "args": equalities}, is_true, 0)
            case "like":
                operand, pattern = _exactly(operator, arguments, 2)
                return self._like(operand, pattern, is_true)
        raise Invalid(
            f"filter: the operator {operator[:40]!r} is not known; known are and, or, not, "
            f"{', '.join(COMPARISONS)}, between, in, like and isNull"
        )

    def _comparison(self, sign: str, left: Any, right: Any, is_true: bool) -> str:
        if not _is_property(left) and _is_property(right):
            left, right, sign = right, left, MIRRORED[sign]
        path = _property(left)
        sign = sign if is_true else OPPOSITES[sign]
        if _is_property(right):
            other = _property(right)
            return f"({_has_value(path)} && {_has_value(other)} && {path} {sign} {other})"
        return f"({_has_value(path)} && {path} {sign} {self._variable(_value(right))})"

    def _like(self, operand: Any, pattern: Any, is_true: bool) -> str:
        if not isinstance(pattern, str) or len(pattern) > MAX_PATTERN_CHARS or pattern.count("%") > MAX_WILDCARDS:
            raise Invalid(
                f"filter: 'like' takes a pattern of at most {MAX_PATTERN_CHARS} characters, "
                f"at most {MAX_WILDCARDS} of them %"
            )
        path = _property(operand)
        wildcards = {"%": ".*", "_": "."}
        expression = "".join(wildcards.get(letter) or re.escape(letter) for letter in pattern)
        matches = f'({path} like_regex {_quoted(f"^{expression}$")} flag "s")'
        return f"({_has_value(path)} && {matches if is_true else f'!{matches}'})"

    def _variable(self, value: Any) -> str:
        if len(self.values) >= MAX_VALUES:
            raise Invalid(f"filter: more than {MAX_VALUES} values")
        name = f"v{len(self.values)}"
        self.values[name] = value
        return f"${name}"


def _operation(expression: Any) -> tuple[str, Sequence[Any]]:
    match expression:
        case {"op": str(operator), "args": list(arguments)}:
            return operator, arguments
    raise Invalid("filter: a condition is an object with 'op' and 'args'")


def _exactly(operator: str, arguments: Sequence[Any], count: int) -> Sequence[Any]:
    if len(arguments) != count:
        raise Invalid(f"filter: {operator!r} takes {count} arguments, not {len(arguments)}")
    return arguments


def _is_property(operand: Any) -> bool:
    return isinstance(operand, dict) and "property" in operand


def _property(operand: Any) -> str:
    if not _is_property(operand) or not isinstance(operand["property"], str):
        raise Invalid("filter: one side of a comparison must be a property")
    return "$" + "".join(f".{_quoted(part)}" for part in property_path(operand["property"]))


def _has_value(path: str) -> str:
    return f"(exists({path} ? (@ != null)))"


def _value(operand: Any) -> Any:
    """Timestamps are compared as strings in UTC, as items store them."""
    if isinstance(operand, dict) and len(operand) == 1:
        [(kind, text)] = operand.items()
        if kind in ("timestamp", "date") and isinstance(text, str):
            return _moment(text)
    if isinstance(operand, bool | int | float | str):
        return operand
    raise Invalid("filter: a value is a string, a number, true, false, a timestamp or a date")


def _moment(text: str) -> str:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise Invalid(f"filter: {text[:40]!r} is not an RFC 3339 timestamp, such as 2026-05-01T00:00:00Z") from error
    moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    return moment.isoformat().replace("+00:00", "Z")


def _quoted(text: str) -> str:
    """A jsonpath string: with JSON escapes and without line breaks."""
    return orjson.dumps(text).decode()
