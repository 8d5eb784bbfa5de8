"""The catalogue entries of one version, for the maintenance of the catalogue."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, TypedDict

from dagmaster.store.assets import StaleVersion
from dagmaster.store.connect import Connection, encode_json
from dagmaster.store.statements import fetch, fetch_as


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
