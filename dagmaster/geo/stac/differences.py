"""Faults of a catalogue entry, compared with the entry derived from its files."""

import math
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

TOLERANCE: Final = 1e-9
PLATFORM: Final = "platform:"
# The source of the time is not in the files.
_NOT_OF_FILES: Final = frozenset({f"{PLATFORM}datetime_source"})


class Fault(StrEnum):
    """`missing`: there is no entry; `surplus`: an entry without a file of the version."""

    MISSING = "missing"
    SURPLUS = "surplus"
    COLLECTION = "collection"
    GEOMETRY = "geometry"
    FILE = "file"
    CHECKSUM = "checksum"
    LINKS = "links"
    PLATFORM = "platform"
    PROJECTION = "projection"


def find_faults(stored: Mapping[str, Any] | None, expected: Mapping[str, Any]) -> list[Fault]:
    """In the order of the enumeration; empty if the entry is correct."""
    if stored is None:
        return [Fault.MISSING]
    return [fault for fault, part in _PARTS.items() if not _is_same(part(stored), part(expected))]


def _of_assets(document: Mapping[str, Any], *names: str) -> Any:
    assets = document.get("assets")
    if not isinstance(assets, Mapping):
        return None
    return {
        key: [asset.get(name) for name in names] if isinstance(asset, Mapping) else None
        for key, asset in assets.items()
    }


def _links(document: Mapping[str, Any]) -> Any:
    links = document.get("links")
    if not isinstance(links, Sequence) or isinstance(links, str):
        return None
    return sorted((str(link.get("rel")), str(link.get("href"))) for link in links if isinstance(link, Mapping))


def _properties(document: Mapping[str, Any], prefix: str) -> Any:
    properties = document.get("properties")
    if not isinstance(properties, Mapping):
        return None
    return {name: value for name, value in properties.items() if name.startswith(prefix) and name not in _NOT_OF_FILES}


def _is_same(before: Any, after: Any) -> bool:
    """Numbers may differ in their last digits, because they were stored as text."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        return before.keys() == after.keys() and all(_is_same(before[name], after[name]) for name in before)
    if isinstance(before, list | tuple) and isinstance(after, list | tuple):
        return len(before) == len(after) and all(map(_is_same, before, after))
    if _is_number(before) and _is_number(after):
        return math.isclose(before, after, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    return bool(before == after)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_PARTS: Final[Mapping[Fault, Callable[[Mapping[str, Any]], Any]]] = {
    Fault.COLLECTION: lambda item: item.get("collection"),
    Fault.GEOMETRY: lambda item: [item.get("geometry"), item.get("bbox")],
    Fault.FILE: lambda item: _of_assets(item, "href", "type"),
    Fault.CHECKSUM: lambda item: _of_assets(item, "file:checksum", "file:size"),
    Fault.LINKS: _links,
    Fault.PLATFORM: lambda item: _properties(item, PLATFORM),
    Fault.PROJECTION: lambda item: _properties(item, "proj:"),
}
