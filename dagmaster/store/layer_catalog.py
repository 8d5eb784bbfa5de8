"""The catalogue of published layers for map clients. Its rows are copies, in this or another database."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, TypedDict

import orjson

from dagmaster.errors import Conflict, Invalid, UnknownLayer
from dagmaster.store.connect import Connection
from dagmaster.store.statements import fetch, fetch_as, fetch_one_as

MAX_TABLE_NAME: Final = 256


class ShownLayer(TypedDict):
    """The presentation of a layer, in its metadata and in the catalogue."""

    data_type: str
    display_name: str
    description: str | None
    attribution: str | None
    keywords: list[str]
    style: dict[str, Any] | None
    legend: dict[str, Any] | None
    field_metadata: dict[str, Any] | None
    min_zoom: int
    max_zoom: int
    default_visible: bool
    sort_order: int
    thumbnail_url: str | None


class CatalogRow(ShownLayer):
    table_name: str
    source_asset_id: str
    version_ordinal: int | None
    bbox: list[float] | None
    published_at: datetime


async def list_catalog(
    conn: Connection, *, platform_id: str | None = None, limit: int, offset: int = 0
) -> list[CatalogRow]:
    """In display order."""
    values = {"table_name": None, "platform_id": platform_id, "limit": limit, "offset": offset}
    return await fetch_as(conn, CatalogRow, "list_catalog", values)


async def get_catalog_entry(conn: Connection, table_name: str, *, platform_id: str | None = None) -> CatalogRow:
    values = {"table_name": table_name, "platform_id": platform_id, "limit": 1, "offset": 0}
    row = await fetch_one_as(conn, CatalogRow, "list_catalog", values)
    if row is None:
        raise UnknownLayer(f"no published layer has the table {table_name[:80]!r}")
    return row


async def put_catalog_entry(conn: Connection, entry: Mapping[str, Any]) -> bool:
    """Make this the only row of its asset. False if it already is.

    Raises Conflict if the table belongs to another asset, and Invalid for a name that is too long.
    """
    asset_id, table_name = entry["source_asset_id"], entry["table_name"]
    if len(table_name) > MAX_TABLE_NAME:
        raise Invalid(f"the name of the table has {len(table_name)} characters; {MAX_TABLE_NAME} are allowed")
    if await fetch(conn, "catalog_of_asset", {"asset_id": asset_id}) == [entry]:
        return False
    await remove_catalog_entries(conn, asset_id, kept_table=table_name)
    if not await fetch(conn, "save_catalog_entry", {"entry": orjson.dumps(dict(entry)).decode()}):
        raise Conflict(f"table {table_name!r} is in the catalogue for another asset; unpublish that one first")
    return True


async def remove_catalog_entries(conn: Connection, asset_id: str, *, kept_table: str | None = None) -> list[str]:
    """Returns the tables whose rows were removed."""
    rows = await fetch(conn, "remove_catalog_entries", {"asset_id": asset_id, "kept_table": kept_table})
    return [row["table_name"] for row in rows]
