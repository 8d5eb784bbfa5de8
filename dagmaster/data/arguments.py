"""The arguments of the methods of Views, read and checked."""

from collections.abc import Mapping, Sequence
from typing import Any

from dagmaster.data.expressions import as_expression
from dagmaster.data.plans import Named
from dagmaster.errors import Invalid


def named_columns(columns: Sequence[Any], named: Mapping[str, Any]) -> tuple[Named, ...]:
    found = []
    for column in columns:
        expression = as_expression(column, column=True)
        if expression.name is None:
            raise Invalid("this column has no name; give it one: name=expression, or expression.alias('name')")
        found.append(Named(name=expression.name, value=expression.node))
    return (*found, *(Named(name=name, value=as_expression(value).node) for name, value in named.items()))


def check_natural(**numbers: int) -> None:
    for name, number in numbers.items():
        if not isinstance(number, int) or isinstance(number, bool) or number < 0:
            raise Invalid(f"{name} must be 0 or more, not {number!r}")


def first_problem(error: ValueError) -> str:
    problems = getattr(error, "errors", None)
    return str(problems()[0]["msg"]).removeprefix("Value error, ") if problems else str(error)
