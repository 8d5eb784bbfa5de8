"""Aggregates and rankings, for use in `agg()` and with `over()`."""

from dagmaster.data.expressions import Call, Expression, Operand, as_expression, call


def sum(value: Operand) -> Expression:
    """64 bits wide for integers, so that a sum of small integers does not overflow."""
    return _aggregate("sum", value)


def mean(value: Operand) -> Expression:
    return _aggregate("mean", value)


def min(value: Operand) -> Expression:
    return _aggregate("min", value)


def max(value: Operand) -> Expression:
    return _aggregate("max", value)


def median(value: Operand) -> Expression:
    return _aggregate("median", value)


def std(value: Operand) -> Expression:
    return _aggregate("std", value)


def var(value: Operand) -> Expression:
    return _aggregate("var", value)


def n_unique(value: Operand) -> Expression:
    """The number of distinct values, without NULL."""
    return _aggregate("n_unique", value)


def count(value: Operand | None = None) -> Expression:
    """The number of rows, or of values that are not NULL."""
    return Expression(Call(function="count", arguments=())) if value is None else _aggregate("count", value)


def row_number() -> Expression:
    return Expression(Call(function="row_number", arguments=()))


def rank() -> Expression:
    return Expression(Call(function="rank", arguments=()))


def dense_rank() -> Expression:
    return Expression(Call(function="dense_rank", arguments=()))


def lag(value: Operand, rows: int = 1) -> Expression:
    """The value so many rows before, in the order of the window; NULL before the first."""
    return call("lag", as_expression(value, column=True), rows)


def lead(value: Operand, rows: int = 1) -> Expression:
    return call("lead", as_expression(value, column=True), rows)


def _aggregate(function: str, value: Operand) -> Expression:
    return call(function, as_expression(value, column=True))
