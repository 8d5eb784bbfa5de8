"""STAC collections, and the published layers that describe them."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from dagmaster.errors import Conflict, Invalid
from dagmaster.store.connect import Connection, Row, encode_json
from dagmaster.store.statements import fetch, fetch_one, run

MAX_COLLECTION_ID: Final = 256


@dataclass(frozen=True, slots=True)
class Collection:
    """`layer_asset_id` is the asset whose layer describes it, `replaced` the previous description.

    `replaced` is None if the collection exists only for the layer, or if no layer describes it.
    """

    collection_id: str
    content: Mapping[str, Any]
    layer_asset_id: str | None = None
    replaced: Mapping[str, Any] | None = None


async def lock_collection(conn: Connection, collection_id: str) -> Collection | None:
    """Lock until the end of the caller's transaction."""
    row = await fetch_one(conn, "lock_collection", {"collection_id": collection_id})
    return Collection(**row) if row else None


async def lock_collections_of_layer(conn: Connection, asset_id: str) -> list[Collection]:
    """The collections that the layer of this asset describes: one or none."""
    return [Collection(**row) for row in await fetch(conn, "lock_collections_of_layer", {"asset_id": asset_id})]


async def add_collection(conn: Connection, collection: Collection) -> None:
    """Raises Conflict if another transaction has just added it, and Invalid for an id that is too long."""
    if (length := len(collection.collection_id)) > MAX_COLLECTION_ID:
        raise Invalid(f"the id of the collection has {length} characters; {MAX_COLLECTION_ID} are allowed")
    if not await fetch(conn, "add_collection", _values(collection)):
        raise Conflict(f"collection {collection.collection_id!r} was created a moment ago; try again")


async def change_collection(conn: Connection, collection: Collection) -> None:
    """The collection must be locked."""
    await run(conn, "change_collection", _values(collection))


async def remove_collection(conn: Connection, collection_id: str) -> None:
    """A collection with items stays, without a layer's description."""
    await run(conn, "remove_collection", {"collection_id": collection_id})


def _values(collection: Collection) -> Row:
    replaced = None if collection.replaced is None else encode_json(dict(collection.replaced))
    return {**asdict(collection), "content": encode_json(dict(collection.content)), "replaced": replaced}
