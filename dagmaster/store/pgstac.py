"""pgSTAC in the same database, if an operator has installed it: written through its own functions."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dagmaster.store.connect import Connection, encode_json
from dagmaster.store.statements import fetch

# Not in the SQL files: those must work in every database with our schema.
_UPSERT_COLLECTION = "SELECT pgstac.upsert_collection($1::jsonb)"
_UPSERT_ITEMS = "SELECT pgstac.upsert_items($1::jsonb)"
_LIST_ITEMS = "SELECT id, collection FROM pgstac.items WHERE collection = ANY ($1::text[])"
_DELETE_ITEM = "SELECT pgstac.delete_item($1::text, $2::text)"


async def has_pgstac(conn: Connection) -> bool:
    [row] = await fetch(conn, "find_pgstac")
    return bool(row["has_pgstac"])


async def use_pgstac(conn: Connection) -> None:
    """For this transaction: pgSTAC's functions call each other without their schema."""
    await conn.execute("SET LOCAL search_path TO pgstac, public")


async def own_collections(conn: Connection) -> list[str]:
    return [row["collection_id"] for row in await fetch(conn, "list_own_collections")]


async def put_collections(conn: Connection, collections: Iterable[Mapping[str, Any]]) -> None:
    for collection in collections:
        await conn.execute(_UPSERT_COLLECTION, [encode_json(collection)])


async def put_items(conn: Connection, items: Sequence[Mapping[str, Any]]) -> None:
    """Write items; their collections must exist in pgSTAC."""
    await conn.execute(_UPSERT_ITEMS, [encode_json(items)])


async def remove_other_items(
    conn: Connection, collections: Sequence[str], items: set[tuple[str, str]]
) -> list[tuple[str, str]]:
    """Remove all other items of these collections, and return them by collection and id."""
    rows = await (await conn.execute(_LIST_ITEMS, [list(collections)])).fetchall()
    others = sorted({(row["collection"], row["id"]) for row in rows} - items)
    for collection, item_id in others:
        await conn.execute(_DELETE_ITEM, [item_id, collection])
    return others
