"""Write the projections of a layer to this database, and remove them again."""

from collections.abc import Awaitable, Callable, Sequence

from dagmaster.assets.projections import (
    Projection,
    ProjectionName,
    ProjectionOutcome,
    catalog_entry,
    collection_id,
    described,
    undescribed,
)
from dagmaster.errors import Conflict, Invalid
from dagmaster.model.asset import Asset
from dagmaster.store.asset_versions import VersionRow
from dagmaster.store.assets import AssetChange, AssetEvent, save_change
from dagmaster.store.connect import Connection
from dagmaster.store.layer_catalog import put_catalog_entry, remove_catalog_entries
from dagmaster.store.layers import LayerRow
from dagmaster.store.stac_collections import (
    Collection,
    add_collection,
    change_collection,
    lock_collection,
    lock_collections_of_layer,
    remove_collection,
)

Written = tuple[ProjectionOutcome, str | None]


async def write_projections(conn: Connection, layer: LayerRow, version: VersionRow) -> list[Projection]:
    """Try all projections: one that fails does not prevent the others."""
    return [
        await _attempt(conn, ProjectionName.STAC_COLLECTION, lambda: _write_collection(conn, layer, version)),
        await _attempt(conn, ProjectionName.LAYER_CATALOG, lambda: _write_catalog(conn, layer, version)),
    ]


async def remove_projections(conn: Connection, asset_id: str) -> list[Projection]:
    collections = await lock_collections_of_layer(conn, asset_id)
    for collection in collections:
        await _undescribe(conn, collection)
    tables = await remove_catalog_entries(conn, asset_id)
    return [
        _removed(ProjectionName.STAC_COLLECTION, [collection.collection_id for collection in collections]),
        _removed(ProjectionName.LAYER_CATALOG, tables),
    ]


async def record_projections(
    conn: Connection,
    asset: Asset,
    event_type: str,
    projections: Sequence[Projection],
    ordinal: int | None,
    actor: str | None,
) -> None:
    """Record them in the history of the asset, which must be locked."""
    data = {"projections": {projection.name.value: projection.outcome.value for projection in projections}}
    await save_change(conn, asset, AssetChange(events=(AssetEvent(event_type, ordinal, actor, event_data=data),)))


async def _attempt(conn: Connection, name: ProjectionName, write: Callable[[], Awaitable[Written]]) -> Projection:
    """A failed projection is rolled back, and the others stay."""
    try:
        async with conn.transaction():
            return Projection(name, *await write())
    except (Conflict, Invalid) as error:
        return Projection(name, ProjectionOutcome.FAILED, error=str(error))


async def _write_collection(conn: Connection, layer: LayerRow, version: VersionRow) -> Written:
    target = collection_id(version)
    for other in await lock_collections_of_layer(conn, layer["asset_id"]):
        if other.collection_id != target:
            await _undescribe(conn, other)
    before = await lock_collection(conn, target)
    after = described(before, layer, version)
    if before is None:
        await add_collection(conn, after)
    elif before == after:
        return ProjectionOutcome.UNCHANGED, target
    else:
        await change_collection(conn, after)
    return ProjectionOutcome.WRITTEN, target


async def _write_catalog(conn: Connection, layer: LayerRow, version: VersionRow) -> Written:
    entry = catalog_entry(layer, version)
    if entry is not None:
        is_changed = await put_catalog_entry(conn, entry)
        return (ProjectionOutcome.WRITTEN if is_changed else ProjectionOutcome.UNCHANGED), entry["table_name"]
    removed = await remove_catalog_entries(conn, layer["asset_id"])
    return (ProjectionOutcome.REMOVED, removed[0]) if removed else (ProjectionOutcome.NOT_APPLICABLE, None)


async def _undescribe(conn: Connection, collection: Collection) -> None:
    before = undescribed(collection)
    if before is None:
        await remove_collection(conn, collection.collection_id)
    else:
        await change_collection(conn, before)


def _removed(name: ProjectionName, targets: Sequence[str]) -> Projection:
    if not targets:
        return Projection(name, ProjectionOutcome.UNCHANGED)
    return Projection(name, ProjectionOutcome.REMOVED, targets[0])
