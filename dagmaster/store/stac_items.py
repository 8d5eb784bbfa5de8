"""The catalogue: the STAC collections and items that a caller may see, and the items of one version."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from itertools import zip_longest
from typing import Any, Final, TypedDict

from dagmaster.store.assets import StaleVersion
from dagmaster.store.connect import Connection, encode_json
from dagmaster.store.statements import fetch, fetch_as

SORT_KEYS: Final = ("first", "second", "third")


@dataclass(frozen=True, slots=True)
class Scope:
    """The visible assets: their clearances for everybody, and for internal callers, of one platform or all."""

    public_clearances: Sequence[str]
    inside_clearances: Sequence[str] = ()
    platform_id: str | None = None

    def values(self) -> dict[str, Any]:
        return {
            "public_clearances": list(self.public_clearances),
            "inside_clearances": list(self.inside_clearances),
            "platform_id": self.platform_id,
        }


@dataclass(frozen=True, slots=True)
class Place:
    """The position of an item in a search: the next page starts after it."""

    at: datetime
    collection_id: str
    item_id: str


@dataclass(frozen=True, slots=True)
class ItemFilter:
    """All conditions must hold. `bbox` is west, south, east, north; west is greater across the antimeridian.

    `condition` is a jsonpath predicate on the item, `condition_values` are its variables.
    """

    collections: Sequence[str] | None = None
    ids: Sequence[str] | None = None
    bbox: tuple[float, float, float, float] | None = None
    first_at: datetime | None = None
    last_at: datetime | None = None
    condition: str | None = None
    condition_values: Mapping[str, Any] = field(default_factory=dict)

    def values(self) -> dict[str, Any]:
        return {
            "collections": list(self.collections) if self.collections is not None else None,
            "ids": list(self.ids) if self.ids is not None else None,
            "bounds": _box(self.bbox) if self.bbox is not None else None,
            "during": _range(self.first_at, self.last_at),
            "condition": self.condition,
            "condition_values": encode_json(dict(self.condition_values)),
        }


@dataclass(frozen=True, slots=True)
class SortKey:
    """The path of a field in an item."""

    path: Sequence[str]
    descends: bool = False


class ItemRow(TypedDict):
    collection_id: str
    item_id: str
    asset_id: str
    version_ordinal: int
    at: datetime
    content: dict[str, Any]


class CollectionRow(TypedDict):
    collection_id: str
    content: dict[str, Any]
    west: float | None
    south: float | None
    east: float | None
    north: float | None
    first_at: datetime
    last_at: datetime


class StacVersionRow(TypedDict):
    """A version with a file and a collection. `version` is for optimistic locking."""

    asset_id: str
    version_ordinal: int
    data_type: str
    platform_id: str
    platform_refs: dict[str, Any]
    blob_path: str
    content_hash: str | None
    stac_item_id: str | None
    stac_collection_id: str
    processing_completed_at: datetime | None
    version: int
    request_id: str | None


class StoredItemRow(TypedDict):
    collection_id: str
    item_id: str
    content: dict[str, Any]


@dataclass(frozen=True, slots=True)
class StacVersionFilter:
    """All conditions must hold."""

    asset_id: str | None = None
    version_ordinal: int | None = None
    collection_id: str | None = None


async def search_items(
    conn: Connection, scope: Scope, where: ItemFilter, *, after: Place | None = None, limit: int
) -> list[ItemRow]:
    """The latest first."""
    values = {
        **scope.values(),
        **where.values(),
        "after_at": after.at if after else None,
        "after_collection": after.collection_id if after else None,
        "after_id": after.item_id if after else None,
        "limit": limit,
    }
    return await fetch_as(conn, ItemRow, "search_stac_items", values)


async def search_sorted_items(
    conn: Connection, scope: Scope, where: ItemFilter, keys: Sequence[SortKey], *, offset: int, limit: int
) -> list[ItemRow]:
    """Sorted by at most three fields, as many as SORT_KEYS names."""
    values: dict[str, Any] = {**scope.values(), **where.values(), "offset": offset, "limit": limit}
    for name, key in zip_longest(SORT_KEYS, keys):
        values[f"{name}_field"] = list(key.path) if key else []
        values[f"{name}_descends"] = key.descends if key else None
    return await fetch_as(conn, ItemRow, "search_sorted_stac_items", values)


async def list_collections(
    conn: Connection, scope: Scope, *, collection_id: str | None = None, limit: int
) -> list[CollectionRow]:
    """The collections with an item that the caller may see; only one if it is named."""
    values = {**scope.values(), "collection_id": collection_id, "limit": limit}
    return await fetch_as(conn, CollectionRow, "list_stac_collections", values)


async def list_stac_versions(
    conn: Connection, where: StacVersionFilter, *, after: tuple[str, int] | None = None, limit: int
) -> list[StacVersionRow]:
    """Processed versions that are not deleted, by asset and ordinal."""
    after_asset, after_ordinal = after or (None, None)
    values = {**asdict(where), "after_asset": after_asset, "after_ordinal": after_ordinal, "limit": limit}
    return await fetch_as(conn, StacVersionRow, "list_stac_versions", values)


async def list_items_of_version(conn: Connection, asset_id: str, ordinal: int) -> list[StoredItemRow]:
    values = {"asset_id": asset_id, "version_ordinal": ordinal}
    return await fetch_as(conn, StoredItemRow, "list_items_of_version", values)


async def replace_items_of_version(
    conn: Connection, version: StacVersionRow, collection: dict[str, Any], items: Sequence[dict[str, Any]]
) -> int:
    """Returns the version's number of items: an id that another version has stays with it.

    An existing collection is not changed. Raises StaleVersion if a job has moved the version in the meantime.
    """
    key = {"asset_id": version["asset_id"], "version_ordinal": version["version_ordinal"]}
    documents = encode_json({"stac_collection": collection, "stac_items": list(items)})
    values = {**key, "known_version": version["version"], "documents": documents}
    async with conn.transaction():
        if not await fetch(conn, "replace_items_of_version", values):
            raise StaleVersion
        return len(await fetch(conn, "list_items_of_version", key))


async def remove_items_of_version(conn: Connection, asset_id: str, ordinal: int) -> list[str]:
    """Returns the ids of the removed items."""
    values = {"asset_id": asset_id, "version_ordinal": ordinal}
    return [row["item_id"] for row in await fetch(conn, "remove_items_of_version", values)]


def _box(bbox: tuple[float, float, float, float]) -> str:
    west, south, east, north = bbox
    return f"(({west!r},{south!r}),({east + 360 if west > east else east!r},{north!r}))"


def _range(first: datetime | None, last: datetime | None) -> str | None:
    if first is None and last is None:
        return None
    return f"[{first.isoformat() if first else ''},{last.isoformat() if last else ''}]"
