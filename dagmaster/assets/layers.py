"""Publish the layers of assets: write their projections, and remove them again."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from dagmaster.assets.layer_projections import remove_projections, write_projections
from dagmaster.assets.projections import CHANGES, Projection, ProjectionName, ProjectionOutcome, catalog_entry
from dagmaster.assets.review import check_live
from dagmaster.errors import Conflict, NotFound, Unavailable
from dagmaster.model.asset import Asset, ClearanceState
from dagmaster.store.asset_index import correct_latest_versions
from dagmaster.store.asset_versions import VersionRow, get_version_row
from dagmaster.store.assets import AssetChange, AssetEvent, lock_asset, save_change
from dagmaster.store.connect import Connection
from dagmaster.store.external_catalog import put_externally, remove_externally
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

    def as_record(self) -> dict[str, Any]:
        return {**asdict(self), "is_complete": self.is_complete}


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
        projections = await write_projections(conn, layer, version)
        return await _save(conn, asset, layer, version, projections, actor)


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
        # When it is done there, nothing here can fail but the database, and then the command is repeated.
        is_changed = await put_externally(external_dsn, entry)
        outcome = ProjectionOutcome.WRITTEN if is_changed else ProjectionOutcome.UNCHANGED
        projection = Projection(ProjectionName.EXTERNAL_CATALOG, outcome, entry["table_name"])
        publication = Publication(
            asset_id, version["version_ordinal"], layer["published_at"], published_at, [projection]
        )
        if is_changed:
            await _record(conn, asset, "metadata_published", publication, actor)
    return publication


async def refresh(
    conn: Connection, asset_id: str, *, actor: str | None, external_dsn: str | None = None
) -> Publication | None:
    """Bring a published layer up to date with the versions of its asset; None for a layer that is not published.

    The layer of an asset that is deleted, or that has no approved version any more, is unpublished.
    """
    async with conn.transaction():
        asset = await lock_asset(conn, asset_id)
        layer = await find_layer(conn, asset_id)
        if layer is None or (layer["published_at"] is None and layer["published_externally_at"] is None):
            return None
        if asset.deleted_at is not None or asset.latest_approved is None:
            return await _unpublish(conn, asset, layer, actor, external_dsn)
        version = await _approved_version(conn, asset)
        projections = await write_projections(conn, layer, version) if layer["published_at"] is not None else []
        if layer["published_externally_at"] is not None:
            projections.append(await _write_externally(layer, version, external_dsn))
        return await _save(conn, asset, layer, version, projections, actor)


async def reindex(conn: Connection, *, actor: str | None, external_dsn: str | None = None) -> tuple[int, BulkReport]:
    """Recompute what is derived from versions: the latest approved ordinals, and the projections of published layers.

    Returns the number of assets whose ordinal was wrong, and the report on the layers.
    """
    async with conn.transaction():
        corrected = await correct_latest_versions(conn)
    report = BulkReport()
    async for asset_id in layer_ids(conn, is_published=True):
        publication = await refresh(conn, asset_id, actor=actor, external_dsn=external_dsn)
        if publication is not None:
            report.add(publication)
    return corrected, report


async def _approved_version(conn: Connection, asset: Asset) -> VersionRow:
    """The latest; raises Conflict where there is none."""
    if asset.latest_approved is None:
        raise Conflict(f"no version of asset {asset.asset_id!r} is approved; approve one first")
    if asset.clearance_state is ClearanceState.UNCLEARED:
        raise Conflict(f"asset {asset.asset_id!r} is not cleared; clear it first")
    return await get_version_row(conn, asset.asset_id, asset.latest_approved)


async def _save(
    conn: Connection,
    asset: Asset,
    layer: LayerRow,
    version: VersionRow,
    projections: Sequence[Projection],
    actor: str | None,
) -> Publication:
    """The times, if all projections are there, and the event, if something has changed."""
    publication = Publication(
        asset.asset_id,
        version["version_ordinal"],
        layer["published_at"],
        layer["published_externally_at"],
        projections,
    )
    is_current = layer["published_at"] is not None and layer["published_at"] >= layer["updated_at"]
    is_here = any(one.name is not ProjectionName.EXTERNAL_CATALOG for one in projections)
    is_published = is_here and publication.is_complete and (publication.is_changed or not is_current)
    if is_published:
        published_at = await mark_layer(conn, asset.asset_id, is_published=True)
        publication = replace(publication, published_at=published_at)
    if is_published or publication.is_changed:
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


async def _write_externally(layer: LayerRow, version: VersionRow, external_dsn: str | None) -> Projection:
    """Again, for another version. One that has no table takes the place of that which had one."""
    name = ProjectionName.EXTERNAL_CATALOG
    entry = catalog_entry(layer, version)
    if external_dsn is None:
        return Projection(name, ProjectionOutcome.FAILED, error=MISSING_SETTING)
    try:
        if entry is None:
            is_changed = bool(await remove_externally(external_dsn, layer["asset_id"]))
        else:
            is_changed = await put_externally(external_dsn, entry)
    except (Conflict, Unavailable) as error:
        return Projection(name, ProjectionOutcome.FAILED, error=str(error))
    changed = ProjectionOutcome.REMOVED if entry is None else ProjectionOutcome.WRITTEN
    outcome = changed if is_changed else ProjectionOutcome.UNCHANGED
    return Projection(name, outcome, entry["table_name"] if entry else None)


async def _record(conn: Connection, asset: Asset, event_type: str, publication: Publication, actor: str | None) -> None:
    data = {"projections": {one.name.value: one.outcome.value for one in publication.projections}}
    event = AssetEvent(event_type, publication.version_ordinal, actor, event_data=data)
    await save_change(conn, asset, AssetChange(events=(event,)))
