"""The references to tables in JSON."""

from collections.abc import Iterator
from typing import Any, Final

import orjson

MARK: Final = b'"object_type"'
MAX_ID: Final = 2**63 - 1
MAX_DIGITS: Final = 18


def tables_in(json: bytes) -> frozenset[int]:
    """The ids of the referenced tables. Most JSON has none, which is detected without decoding it."""
    return frozenset(_of_references(orjson.loads(json))) if has_references(json) else frozenset()


def has_references(json: bytes) -> bool:
    """Whether the JSON may hold references."""
    return MARK in json


def _of_references(value: Any) -> Iterator[int]:
    for part in _parts(value):
        match part:
            case {"object_type": "object" | "view", "inline": dict()}:
                pass  # It has its rows with it, and names no table of this installation.
            case {"object_type": "object" | "view"}:
                yield from _ids(part)


def _ids(reference: dict[str, Any]) -> Iterator[int]:
    """The ids of the table itself and of the tables that its plan scans."""
    for part in _parts(reference):
        match part:
            case {"table_id": int() as table_id} if 0 < table_id <= MAX_ID and table_id is not True:
                yield table_id
            case {"table_id": str() as text} if text.isdecimal() and len(text) <= MAX_DIGITS:
                yield int(text)


def _parts(value: Any) -> Iterator[Any]:
    stack = [value]
    while stack:
        part = stack.pop()
        yield part
        if isinstance(part, dict):
            stack += part.values()
        elif isinstance(part, list):
            stack += part
