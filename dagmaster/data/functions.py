"""The functions that expressions may call, by their names here and in ClickHouse. No others can be called."""

from collections.abc import Mapping
from typing import Final

FUNCTIONS: Final[Mapping[str, str]] = {
    "add": "plus",
    "subtract": "minus",
    "multiply": "multiply",
    "divide": "divide",
    "modulo": "positiveModulo",
    "power": "pow",
    "negate": "negate",
    "abs": "abs",
    "round": "round",
    "floor": "floor",
    "ceil": "ceil",
    "sqrt": "sqrt",
    "exp": "exp",
    "log": "log",
    "least": "least",
    "greatest": "greatest",
    "equals": "equals",
    "not_equals": "notEquals",
    "less": "less",
    "less_or_equals": "lessOrEquals",
    "greater": "greater",
    "greater_or_equals": "greaterOrEquals",
    "and": "and",
    "or": "or",
    "not": "not",
    "is_in": "in",
    "is_null": "isNull",
    "is_not_null": "isNotNull",
    "fill_null": "ifNull",
    "coalesce": "coalesce",
    "null_if": "nullIf",
    "when": "multiIf",
    "concat": "concat",
    "length": "lengthUTF8",
    "lower": "lowerUTF8",
    "upper": "upperUTF8",
    "strip": "trimBoth",
    "substring": "substringUTF8",
    "replace": "replaceAll",
    "contains": "positionUTF8",
    "starts_with": "startsWithUTF8",
    "ends_with": "endsWithUTF8",
    "matches": "match",
    "split": "splitByString",
    "year": "toYear",
    "month": "toMonth",
    "day": "toDayOfMonth",
    "hour": "toHour",
    "minute": "toMinute",
    "weekday": "toDayOfWeek",
    "to_date": "toDate32",
    "start_of_month": "toStartOfMonth",
    "start_of_day": "toStartOfDay",
    "add_days": "addDays",
    "add_months": "addMonths",
    "add_seconds": "addSeconds",
    "date_diff": "dateDiff",
    "array": "array",
    "array_length": "length",
    "array_contains": "has",
    "array_sum": "arraySum",
    "array_sort": "arraySort",
    "array_distinct": "arrayDistinct",
    "array_element": "arrayElementOrNull",
    "array_join": "arrayStringConcat",
}

# Calls that need more than the name of the function.
FORMS: Final[Mapping[str, str]] = {
    "contains": "(positionUTF8({}) > 0)",
    # ClickHouse returns times of the type DateTime as numbers.
    "start_of_day": "toDateTime64(toStartOfDay({}), 0)",
    # The elements of stored arrays may be NULL.
    "array_sum": "arraySum(x -> assumeNotNull(x), arrayFilter(x -> isNotNull(x), {}))",
}

# Without rows these are NULL, as in standard SQL, by the combinator -OrNull; counts are 0.
AGGREGATES: Final[Mapping[str, str]] = {
    "sum": "sum",
    "mean": "avg",
    "min": "min",
    "max": "max",
    "median": "medianExact",
    "std": "stddevSamp",
    "var": "varSamp",
    "count": "count",
    "n_unique": "uniqExact",
}
NEVER_NULL: Final = frozenset({"count", "n_unique"})

RANKINGS: Final[Mapping[str, str]] = {
    "row_number": "row_number",
    "rank": "rank",
    "dense_rank": "dense_rank",
    "lag": "lagInFrame",
    "lead": "leadInFrame",
}
# NULL beyond the first or last row; they look past the current row.
NEIGHBOURS: Final = frozenset({"lag", "lead"})
