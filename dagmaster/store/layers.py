"""Layers: how maps show an asset, and the tables of vector layers."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from dagmaster.errors import UnknownLayer
from dagmaster.store.connect import Connection, encode_json, required
from dagmaster.store.layer_catalog import ShownLayer
from dagmaster.store.statements import fetch, fetch_as, fetch_one_as, run

BATCH: Final = 500
STALE_AT_ONCE: Final = 20
# How long the external database has to confirm a layer, and how long a failed layer is not retried.
CONFIRM_SECONDS: Final = 60.0
PAUSE_SECONDS: Final = 300.0
ANY_LAYER: Final = {"asset_id": None, "platform_id": None, "is_published": None, "include_deleted": False, "offset": 0}


class LayerRow(ShownLayer):
    asset_id: str
    published_at: datetime | None
    published_externally_at: datetime | None
    is_external: bool
    external_pending: datetime | None
    created_at: datetime
    updated_at: datetime
    version: int
    platform_id: str


@dataclass(frozen=True, slots=True)
class OwnedTable:
    """A table by its qualified name, with the job that created it and the version it belongs to."""

    table_name: str
    job_id: int
    asset_id: str | None = None
    version_ordinal: int | None = None


async def list_layers(
    conn: Connection, *, platform_id: str | None = None, is_published: bool | None = None, limit: int, offset: int = 0
) -> list[LayerRow]:
    """In display order."""
    values = {**ANY_LAYER, "platform_id": platform_id, "is_published": is_published, "limit": limit, "offset": offset}
    return await fetch_as(conn, LayerRow, "list_layers", values)


async def find_layer(conn: Connection, asset_id: str) -> LayerRow | None:
    """Includes deleted assets."""
    values = {**ANY_LAYER, "asset_id": asset_id, "include_deleted": True, "limit": 1}
    return await fetch_one_as(conn, LayerRow, "list_layers", values)


async def get_layer(conn: Connection, asset_id: str) -> LayerRow:
    """Raises UnknownLayer."""
    return required(await find_layer(conn, asset_id), UnknownLayer(f"asset {asset_id[:80]!r} has no layer metadata"))


async def add_layer(conn: Connection, asset_id: str, data_type: str, fields: Mapping[str, Any]) -> bool:
    """False if the asset has metadata already."""
    values = {"asset_id": asset_id, "data_type": data_type, "fields": encode_json(dict(fields))}
    return bool(await fetch(conn, "add_layer", values))


async def replace_layer(conn: Connection, asset_id: str, version: int, fields: Mapping[str, Any]) -> bool:
    """False if the metadata has another version by now."""
    values = {"asset_id": asset_id, "version": version, "fields": encode_json(dict(fields))}
    return bool(await fetch(conn, "replace_layer", values))


async def remove_layer(conn: Connection, asset_id: str) -> None:
    await fetch(conn, "remove_layer", {"asset_id": asset_id})


async def mark_layer(conn: Connection, asset_id: str, *, is_published: bool) -> datetime | None:
    """Returns the time of publication."""
    [row] = await fetch(conn, "mark_layer", {"asset_id": asset_id, "is_published": is_published})
    published_at: datetime | None = row["published_at"]
    return published_at


async def mark_refreshed_layer(conn: Connection, asset_id: str, ordinal: int, version: int) -> None:
    """Record that the projections here show this version, as its row was then."""
    await run(conn, "mark_refreshed_layer", {"asset_id": asset_id, "version_ordinal": ordinal, "version": version})


async def expect_external_layer(conn: Connection, asset_id: str, *, is_external: bool) -> datetime:
    """The revision of the state to send to the external database. The asset must be locked."""
    values = {"asset_id": asset_id, "is_external": is_external, "patience_seconds": CONFIRM_SECONDS}
    [row] = await fetch(conn, "expect_external_layer", values)
    revision: datetime = row["external_pending"]
    return revision


async def confirm_external_layer(
    conn: Connection, asset_id: str, revision: datetime, *, is_there: bool, is_changed: bool
) -> None:
    """The external database has this revision. No effect if another revision was sent since."""
    values = {"asset_id": asset_id, "revision": revision, "is_there": is_there, "is_changed": is_changed}
    await run(conn, "confirm_external_layer", values)


async def withdraw_external_layer(
    conn: Connection, asset_id: str, revision: datetime, *, is_external: bool, is_settled: bool
) -> None:
    """Stop expecting this revision. `is_settled`: the external database has certainly not applied it."""
    values = {"asset_id": asset_id, "revision": revision, "is_external": is_external, "is_settled": is_settled}
    await run(conn, "withdraw_external_layer", values)


async def claim_stale_layers(conn: Connection, *, has_external: bool) -> list[str]:
    """Published layers that lag behind their assets; without an external database, only internal ones."""
    values = {"has_external": has_external, "pause_seconds": PAUSE_SECONDS, "limit": STALE_AT_ONCE}
    return [row["asset_id"] for row in await fetch(conn, "claim_stale_layers", values)]


async def layer_ids(conn: Connection, *, is_published: bool = False) -> AsyncIterator[str]:
    """The ids of all assets with metadata; `is_published`: only those with a published layer, deleted ones included."""
    after = ""
    while rows := await fetch(conn, "layer_ids", {"after": after, "is_published": is_published, "limit": BATCH}):
        for row in rows:
            yield row["asset_id"]
        after = rows[-1]["asset_id"]


async def find_unused_tables(conn: Connection, tables: Sequence[OwnedTable]) -> list[str]:
    """The tables that no version uses and no job writes to or can continue with."""
    values = {
        "table_names": [table.table_name for table in tables],
        "job_ids": [table.job_id for table in tables],
        "asset_ids": [table.asset_id for table in tables],
        "ordinals": [table.version_ordinal for table in tables],
    }
    return [row["table_name"] for row in await fetch(conn, "find_unused_tables", values)]


async def drop_tables_of_version(conn: Connection, asset_id: str, ordinal: int) -> list[str]:
    """Drop the tables that jobs created for the version, and return their names. Other tables stay."""
    async with conn.transaction():
        rows = await fetch(conn, "list_tables_of_version", {"asset_id": asset_id, "version_ordinal": ordinal})
        for row in rows:
            await conn.execute(row["command"].encode())
    return [row["table_name"] for row in rows]
