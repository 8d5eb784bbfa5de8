"""Publish the layers of assets: write their projections, and remove them again."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from dagmaster.assets.layer_projections import remove_projections, write_projections
from dagmaster.assets.projections import CHANGES, Projection, ProjectionName, ProjectionOutcome, catalog_entry
from dagmaster.assets.review import check_live
from dagmaster.errors import Conflict, NotFound, Unavailable
from dagmaster.model.asset import Asset, ClearanceState
from dagmaster.store.asset_index import correct_latest_versions
from dagmaster.store.asset_versions import VersionRow, get_version_row
from dagmaster.store.assets import AssetChange, AssetEvent, lock_asset, save_change
from dagmaster.store.connect import Connection
from dagmaster.store.external_catalog import remove_externally, save_externally
from dagmaster.store.layers import LayerRow, find_layer, get_layer, layer_ids, mark_external_layer, mark_layer

MAX_REPORTED: Final = 100
MISSING_SETTING: Final = (
    "there is no external database; set external_b2c_connection_string (EXTERNAL_B2C_CONNECTION_STRING) on the server"
)


@dataclass(frozen=True, slots=True)
class Publication:
    """A layer after it was published or unpublished. Where a projection failed, the times are those of before.

    `version_ordinal` is the version that is projected.
    """

    asset_id: str
    version_ordinal: int | None
    published_at: datetime | None
    published_externally_at: datetime | None
    projections: Sequence[Projection]

    @property
    def is_complete(self) -> bool:
        return all(projection.outcome is not ProjectionOutcome.FAILED for projection in self.projections)

    @property
    def is_changed(self) -> bool:
        return any(projection.outcome in CHANGES for projection in self.projections)

    @property
    def errors(self) -> list[str]:
        return [f"{one.name}: {one.error}" for one in self.projections if one.error is not None]


@dataclass(slots=True)
class BulkReport:
    """How many of many layers changed, stayed as they were, cannot be published or failed, and why some failed."""

    changed: int = 0
    unchanged: int = 0
    skipped: int = 0
    failed: int = 0
    failures: list[dict[str, str]] = field(default_factory=list)

    def add(self, publication: Publication) -> None:
        if publication.errors:
            self.fail(publication.asset_id, "; ".join(publication.errors))
        elif publication.is_changed:
            self.changed += 1
        else:
            self.unchanged += 1

    def fail(self, asset_id: str, reason: str) -> None:
        self.failed += 1
        if len(self.failures) < MAX_REPORTED:
            self.failures.append({"asset_id": asset_id, "error": reason})


async def publish(conn: Connection, asset_id: str, *, actor: str | None) -> Publication:
    """Project the layer of the latest approved version. Repeating it changes nothing."""
    async with conn.transaction():
        asset = await lock_asset(conn, asset_id)
        check_live(asset)
        layer = await get_layer(conn, asset_id)
        version = await _approved_version(conn, asset)
        return await _publish(conn, asset, layer, version, actor)


async def unpublish(
    conn: Connection, asset_id: str, *, actor: str | None, external_dsn: str | None = None
) -> Publication:
    """Remove all projections, also those in the external database. Also of an asset that is deleted."""
    async with conn.transaction():
        asset = await lock_asset(conn, asset_id)
        return await _unpublish(conn, asset, await get_layer(conn, asset_id), actor, external_dsn)


async def publish_all(conn: Connection, *, actor: str | None) -> BulkReport:
    """Each layer in a transaction of its own: one that fails does not hold up the others."""
    report = BulkReport()
    async for asset_id in layer_ids(conn):
        try:
            report.add(await publish(conn, asset_id, actor=actor))
        except (Conflict, NotFound):  # It has no approved version, or is gone.
            report.skipped += 1
    return report


async def publish_externally(
    conn: Connection, asset_id: str, *, actor: str | None, external_dsn: str | None
) -> Publication:
    """Write the layer to the external database, which everybody may read: only at public clearance.

    Raises Conflict, and Unavailable if the external database does not take it; then nothing has changed.
    """
    async with conn.transaction():
        asset = await lock_asset(conn, asset_id)
        check_live(asset)
        layer = await get_layer(conn, asset_id)
        version = await _approved_version(conn, asset)
        if asset.clearance_state is not ClearanceState.PUBLIC:
            raise Conflict(
                f"the asset is {asset.clearance_state}: only a public asset can be published externally; "
                "make it public first"
            )
        entry = catalog_entry(layer, version)
        if entry is None:
            raise Conflict(
                f"version {version['version_ordinal']} has no table; only layers with a table are published externally"
            )
        if external_dsn is None:
            raise Conflict(MISSING_SETTING)
        published_at = await mark_external_layer(conn, asset_id, is_published=True)
        written = Projection(ProjectionName.EXTERNAL_CATALOG, ProjectionOutcome.WRITTEN, entry["table_name"])
        publication = Publication(asset_id, version["version_ordinal"], layer["published_at"], published_at, [written])
        await _record(conn, asset, "metadata_published", publication, actor)
        # Last: when it is done there, nothing here can fail but the commit, and then it is repeated.
        await save_externally(external_dsn, entry)
    return publication


async def reindex(conn: Connection, *, actor: str | None, external_dsn: str | None = None) -> tuple[int, BulkReport]:
    """Recompute what is derived from versions: the latest approved ordinals, and the projections of published layers.

    Layers of assets that are deleted, or that have no approved version any more, are unpublished. Returns the number of
    assets whose ordinal was wrong, and the report on the layers.
    """
    async with conn.transaction():
        corrected = await correct_latest_versions(conn)
    report = BulkReport()
    async for asset_id in layer_ids(conn, is_published=True):
        if (publication := await _refresh(conn, asset_id, actor, external_dsn)) is not None:
            report.add(publication)
    return corrected, report


async def _refresh(conn: Connection, asset_id: str, actor: str | None, external_dsn: str | None) -> Publication | None:
    """None for a layer that somebody else has unpublished or removed in the meantime."""
    async with conn.transaction():
        asset = await lock_asset(conn, asset_id)
        layer = await find_layer(conn, asset_id)
        if layer is None or (layer["published_at"] is None and layer["published_externally_at"] is None):
            return None
        if asset.deleted_at is not None or asset.latest_approved is None:
            return await _unpublish(conn, asset, layer, actor, external_dsn)
        if layer["published_at"] is None:
            return None
        return await _publish(conn, asset, layer, await _approved_version(conn, asset), actor)


async def _approved_version(conn: Connection, asset: Asset) -> VersionRow:
    """The latest; raises Conflict where there is none."""
    if asset.latest_approved is None:
        raise Conflict(f"no version of asset {asset.asset_id!r} is approved; approve one first")
    if asset.clearance_state is ClearanceState.UNCLEARED:
        raise Conflict(f"asset {asset.asset_id!r} is not cleared; clear it first")
    return await get_version_row(conn, asset.asset_id, asset.latest_approved)


async def _publish(
    conn: Connection, asset: Asset, layer: LayerRow, version: VersionRow, actor: str | None
) -> Publication:
    projections = await write_projections(conn, layer, version)
    publication = Publication(
        asset.asset_id,
        version["version_ordinal"],
        layer["published_at"],
        layer["published_externally_at"],
        projections,
    )
    is_current = layer["published_at"] is not None and layer["published_at"] >= layer["updated_at"]
    if publication.is_complete and (publication.is_changed or not is_current):
        published_at = await mark_layer(conn, asset.asset_id, is_published=True)
        publication = replace(publication, published_at=published_at)
    elif not publication.is_changed:
        return publication
    await _record(conn, asset, "metadata_published", publication, actor)
    return publication


async def _unpublish(
    conn: Connection, asset: Asset, layer: LayerRow, actor: str | None, external_dsn: str | None
) -> Publication:
    external = await _remove_externally(conn, layer, external_dsn)
    projections = [*await remove_projections(conn, asset.asset_id), external]
    if layer["published_at"] is not None:
        await mark_layer(conn, asset.asset_id, is_published=False)
    left = layer["published_externally_at"] if external.outcome is ProjectionOutcome.FAILED else None
    publication = Publication(asset.asset_id, None, None, left, projections)
    if publication.is_changed or layer["published_at"] is not None:
        await _record(conn, asset, "metadata_unpublished", publication, actor)
    return publication


async def _remove_externally(conn: Connection, layer: LayerRow, external_dsn: str | None) -> Projection:
    name = ProjectionName.EXTERNAL_CATALOG
    if layer["published_externally_at"] is None:
        return Projection(name, ProjectionOutcome.NOT_APPLICABLE)
    if external_dsn is None:
        return Projection(name, ProjectionOutcome.FAILED, error=MISSING_SETTING)
    try:
        removed = await remove_externally(external_dsn, layer["asset_id"])
    except (Conflict, Unavailable) as error:
        return Projection(name, ProjectionOutcome.FAILED, error=str(error))
    await mark_external_layer(conn, layer["asset_id"], is_published=False)
    return Projection(name, ProjectionOutcome.REMOVED, next(iter(removed), None))


async def _record(conn: Connection, asset: Asset, event_type: str, publication: Publication, actor: str | None) -> None:
    data = {"projections": {one.name.value: one.outcome.value for one in publication.projections}}
    event = AssetEvent(event_type, publication.version_ordinal, actor, event_data=data)
    await save_change(conn, asset, AssetChange(events=(event,)))
