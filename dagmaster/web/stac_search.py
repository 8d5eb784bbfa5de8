"""Searches of the STAC API: parse the request and find a page of items."""

import asyncio
import math
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as NotBase64
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

import orjson

from dagmaster.errors import Invalid
from dagmaster.schemas.stac import StacSearch
from dagmaster.store.connect import Connection
from dagmaster.store.stac_items import ItemFilter, ItemRow, Place, Scope, SortKey, search_items, search_sorted_items
from dagmaster.web.cql2 import compile_filter, property_path
from dagmaster.web.cql2_text import parse_text
from dagmaster.web.intersection import Shape, intersects, parse_shape

OPEN: Final = ("", "..")
TURNS: Final = (0.0, 360.0, -360.0)
MAX_OFFSET: Final = 100_000
# The number of items, per page, whose geometries are compared exactly after their boxes match.
BATCH_ITEMS: Final = 200
MAX_BATCHES: Final = 20

# The start of the next page: after an item, or at an offset in a sorted search.
Position = Place | int


@dataclass(frozen=True, slots=True)
class ItemSearch:
    """`shapes` is the geometry that items must intersect, repeated for each wrap around the earth."""

    where: ItemFilter
    keys: Sequence[SortKey]
    shapes: Sequence[Shape]
    limit: int
    start: Position | None = None


@dataclass(frozen=True, slots=True)
class ItemPage:
    """`token` is for the next page; None on the last."""

    rows: list[ItemRow]
    token: str | None


def parse_search(search: StacSearch) -> ItemSearch:
    """Raises Invalid."""
    first_at, last_at = parse_interval(search.datetime) if search.datetime else (None, None)
    if search.bbox is not None and search.intersects is not None:
        raise Invalid("intersects: not together with bbox")
    where = ItemFilter(
        collections=search.collections,
        ids=search.ids,
        bbox=parse_bbox(search.bbox) if search.bbox is not None else None,
        first_at=first_at,
        last_at=last_at,
    )
    shapes: list[Shape] = []
    if search.intersects is not None:
        shape = parse_shape(search.intersects)
        shapes = [shape.moved(turn) for turn in TURNS]
        where = replace(where, bbox=shape.bounds)
    if search.filter is not None:
        condition = compile_filter(_expression(search))
        where = replace(where, condition=condition.path, condition_values=condition.values)
    keys = [SortKey(property_path(sort.field), sort.direction == "desc") for sort in search.sortby or ()]
    start = decode_token(search.token) if search.token else None
    if start is not None and isinstance(start, int) is not bool(keys):
        raise Invalid("token: must come from the link `next` of a page with the same order")
    return ItemSearch(where, keys, shapes, search.limit, start)


def _expression(search: StacSearch) -> Any:
    is_text = isinstance(search.filter, str)
    if search.filter_lang is not None and is_text is not (search.filter_lang == "cql2-text"):
        raise Invalid("filter-lang: cql2-text is a string, cql2-json an object")
    return parse_text(search.filter) if isinstance(search.filter, str) else search.filter


async def find_page(conn: Connection, scope: Scope, search: ItemSearch) -> ItemPage:
    """Reads one item more to see whether there is another page. A page may be incomplete although more follow, because
    exact comparisons with a geometry are limited.
    """
    rows: list[ItemRow] = []
    position = search.start
    size = max(BATCH_ITEMS, search.limit + 1) if search.shapes else search.limit + 1
    for _ in range(MAX_BATCHES):
        batch = await _batch(conn, scope, search, position, size)
        touched = await asyncio.to_thread(_touched, batch, search.shapes) if search.shapes else [True] * len(batch)
        for row, is_touched in zip(batch, touched, strict=True):
            if len(rows) == search.limit:
                return ItemPage(rows, _encode(position))
            if is_touched:
                rows.append(row)
            position = _after(row, position, search)
        if len(batch) < size:
            return ItemPage(rows, None)
    return ItemPage(rows, _encode(position))


async def _batch(
    conn: Connection, scope: Scope, search: ItemSearch, position: Position | None, size: int
) -> list[ItemRow]:
    if isinstance(position, Place) or not search.keys:
        after = position if isinstance(position, Place) else None
        return await search_items(conn, scope, search.where, after=after, limit=size)
    return await search_sorted_items(conn, scope, search.where, search.keys, offset=position or 0, limit=size)


def _after(row: ItemRow, position: Position | None, search: ItemSearch) -> Position:
    if search.keys:
        return (position if isinstance(position, int) else 0) + 1
    return Place(row["at"], row["collection_id"], row["item_id"])


def _touched(rows: Sequence[ItemRow], shapes: Sequence[Shape]) -> list[bool]:
    """Takes seconds for large geometries."""
    return [_is_touched(row, shapes) for row in rows]


def _is_touched(row: ItemRow, shapes: Sequence[Shape]) -> bool:
    geometry = row["content"].get("geometry")
    if geometry is None:
        return False
    try:
        footprint = parse_shape(geometry, None)
    except Invalid:
        return False
    return any(intersects(shape, footprint) for shape in shapes)


def parse_bbox(numbers: Sequence[float]) -> tuple[float, float, float, float]:
    """Heights in a box of six numbers are ignored."""
    if len(numbers) not in (4, 6) or not all(map(math.isfinite, numbers)):
        raise Invalid("bbox: must be west, south, east, north in degrees")
    west, south, east, north = numbers if len(numbers) == 4 else (numbers[0], numbers[1], numbers[3], numbers[4])
    if not (-180 <= west <= 180 and -180 <= east <= 180 and -90 <= south <= north <= 90):
        raise Invalid(
            "bbox: must be west, south, east, north in degrees, with south not above north; west is greater than east "
            "across the antimeridian"
        )
    return west, south, east, north


def parse_interval(text: str) -> tuple[datetime | None, datetime | None]:
    """A timestamp, or two separated by a slash; `..` is open."""
    first, slash, last = text.partition("/")
    if not slash:
        moment = _moment(first)
        return moment, moment
    start = None if first in OPEN else _moment(first)
    end = None if last in OPEN else _moment(last)
    if (start is None and end is None) or (start and end and start > end):
        raise Invalid("datetime: an interval must have a start or an end, and must not end before it starts")
    return start, end


def _moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise Invalid("datetime: must be in RFC 3339, such as 2026-05-01T00:00:00Z, or an interval FROM/TO") from error
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _encode(position: Position | None) -> str:
    match position:
        case Place():
            parts: list[Any] = [position.at.isoformat(), position.collection_id, position.item_id]
        case _:
            parts = [position]
    return urlsafe_b64encode(orjson.dumps(parts)).decode().rstrip("=")


def decode_token(token: str) -> Position:
    try:
        parts = orjson.loads(urlsafe_b64decode(token + "=" * (-len(token) % 4)))
        if isinstance(parts, list) and len(parts) == 1 and type(parts[0]) is int and 0 <= parts[0] <= MAX_OFFSET:
            return parts[0]
        at, collection_id, item_id = parts
        return Place(datetime.fromisoformat(at), str(collection_id), str(item_id))
    except (ValueError, TypeError, NotBase64) as error:
        raise Invalid("token: must come from the link `next` of another page") from error
