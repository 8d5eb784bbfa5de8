"""Rows in column form: field names and repeated values of thousands of rows are sent once."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"

Column = list[Any] | dict[str, Any]


def columns(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[str, Column]:
    """Missing values are None, and columns of only None are omitted. static/graph/columns.js decodes them."""
    by_name = {name: column([row.get(name) for row in rows]) for name in names}
    return {name: column for name, column in by_name.items() if column != {"same": None}}


def column(values: list[Any]) -> Column:
    """A column with few distinct values lists each once, with a digit for each row."""
    places: dict[Any, int] = {}
    try:
        for value in values:
            if places.setdefault(value, len(places)) >= len(DIGITS):
                return values
    except TypeError:  # Some values are not hashable, such as counts by status.
        return values
    if len(places) <= 1:
        return {"same": next(iter(places), None)}
    if len(places) == len(values):
        return values
    return {"values": list(places), "at": "".join(DIGITS[places[value]] for value in values)}
