"""Publish the layers of assets: write their projections, and remove them again."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from dagmaster.assets.external_layers import (
    MISSING_SETTING,
    ExternalState,
    deliver,
    expect,
    is_expected,
    send,
    withdraw,
)
from dagmaster.assets.layer_projections import record_projections, remove_projections, write_projections
from dagmaster.assets.projections import CHANGES, Projection, ProjectionName, ProjectionOutcome, catalog_entry
from dagmaster.assets.review import check_live
from dagmaster.errors import Conflict, Invalid, NotFound, Unavailable
from dagmaster.model.asset import Asset, ClearanceState
from dagmaster.store.asset_versions import VersionRow, get_version_row
from dagmaster.store.assets import correct_latest_versions, lock_asset
from dagmaster.store.connect import Connection
from dagmaster.store.layers import (
    LayerRow,
    claim_stale_layers,
    find_layer,
    get_layer,
    layer_ids,
    mark_layer,
    mark_refreshed_layer,
)

MAX_REPORTED: Final = 100


@dataclass(frozen=True, slots=True)
class Publication:
    """A layer after it was published or unpublished. If a projection failed, the times are unchanged.

    `version_ordinal` is the projected version.
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
        return [f"{projection.name}: {projection.error}" for projection in self.projections if projection.error]

    def as_record(self) -> dict[str, Any]:
        return {**asdict(self), "is_complete": self.is_complete}


@dataclass(slots=True)
class BulkReport:
    """How many layers were changed, unchanged, unpublishable or failed, and why some failed."""

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
    """Project the layer of the latest approved version. Idempotent."""
    async with conn.transaction():
        asset = await lock_asset(conn, asset_id)
        check_live(asset)
        layer = await get_layer(conn, asset_id)
        version = await _approved_version(conn, asset)
        projections = await write_projections(conn, layer, version)
        publication = await _save(conn, asset, layer, version, projections, actor)
        if publication.is_complete and not is_expected(layer):
            await mark_refreshed_layer(conn, asset_id, version["version_ordinal"], version["version"])
        return publication


async def unpublish(
    conn: Connection, asset_id: str, *, actor: str | None, external_dsn: str | None = None
) -> Publication:
    """Remove all projections, including external ones, and those of a deleted asset."""
    async with conn.transaction():
        asset = await lock_asset(conn, asset_id)
        publication, state = await _unpublish(conn, asset, await get_layer(conn, asset_id), actor)
    return await _sent(conn, publication, state, actor, external_dsn)


async def publish_all(conn: Connection, *, actor: str | None) -> BulkReport:
    """Publish each layer in its own transaction: one that fails does not prevent the others."""
    report = BulkReport()
    async for asset_id in layer_ids(conn):
        try:
            report.add(await publish(conn, asset_id, actor=actor))
        except (Conflict, NotFound):  # It has no approved version, or was removed.
            report.skipped += 1
    return report


async def publish_externally(
    conn: Connection, asset_id: str, *, actor: str | None, external_dsn: str | None
) -> Publication:
    """Write the layer to the external, publicly readable database: only with public clearance.

    Raises Conflict, and Unavailable if the external database does not accept it; then nothing has changed.
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
        state = await expect(conn, asset_id, entry, version["version_ordinal"])
    try:
        projection = await deliver(conn, state, actor=actor, external_dsn=external_dsn)
    except (Conflict, Invalid, Unavailable) as error:
        await withdraw(conn, state, layer, error)
        raise
    published_at = (await get_layer(conn, asset_id))["published_externally_at"]
    return Publication(asset_id, version["version_ordinal"], layer["published_at"], published_at, [projection])


async def refresh(
    conn: Connection, asset_id: str, *, actor: str | None, external_dsn: str | None = None
) -> Publication | None:
    """Update a published layer to the versions of its asset; None for a layer that is not published.

    The layer of an asset that is deleted, or has no approved version, is unpublished.
    """
    async with conn.transaction():
        asset = await lock_asset(conn, asset_id)
        layer = await find_layer(conn, asset_id)
        if layer is None or not (layer["published_at"] is not None or is_expected(layer)):
            return None
        if asset.deleted_at is not None or asset.latest_approved is None:
            publication, state = await _unpublish(conn, asset, layer, actor)
        else:
            publication, state = await _refresh(conn, asset, layer, actor)
    return await _sent(conn, publication, state, actor, external_dsn)


async def refresh_stale(conn: Connection, *, external_dsn: str | None) -> BulkReport:
    """Refresh some published layers that lag behind: a refresh failed, or the version was processed again."""
    report = BulkReport()
    for asset_id in await claim_stale_layers(conn, has_external=external_dsn is not None):
        await _add_refreshed(conn, asset_id, report, actor=None, external_dsn=external_dsn)
    return report


async def reindex(conn: Connection, *, actor: str | None, external_dsn: str | None = None) -> tuple[int, BulkReport]:
    """Recompute data derived from versions: the latest approved ordinals, and the projections of published layers.

    Returns the number of assets whose ordinal was wrong, and the report on the layers.
    """
    async with conn.transaction():
        corrected = await correct_latest_versions(conn)
    report = BulkReport()
    async for asset_id in layer_ids(conn, is_published=True):
        await _add_refreshed(conn, asset_id, report, actor=actor, external_dsn=external_dsn)
    return corrected, report


async def _add_refreshed(
    conn: Connection, asset_id: str, report: BulkReport, *, actor: str | None, external_dsn: str | None
) -> None:
    """A layer that cannot be refreshed does not prevent the others."""
    try:
        publication = await refresh(conn, asset_id, actor=actor, external_dsn=external_dsn)
    except (Conflict, NotFound) as error:
        report.fail(asset_id, str(error))
        return
    if publication is not None:
        report.add(publication)


async def _approved_version(conn: Connection, asset: Asset) -> VersionRow:
    """The latest approved version; raises Conflict if there is none."""
    if asset.latest_approved is None:
        raise Conflict(f"no version of asset {asset.asset_id!r} is approved; approve one first")
    if asset.clearance_state is ClearanceState.UNCLEARED:
        raise Conflict(f"asset {asset.asset_id!r} is not cleared; clear it first")
    return await get_version_row(conn, asset.asset_id, asset.latest_approved)


async def _refresh(
    conn: Connection, asset: Asset, layer: LayerRow, actor: str | None
) -> tuple[Publication, ExternalState | None]:
    version = await _approved_version(conn, asset)
    projections = await write_projections(conn, layer, version) if layer["published_at"] is not None else []
    publication = await _save(conn, asset, layer, version, projections, actor)
    state = None
    if is_expected(layer):
        is_external = layer["is_external"]
        entry = catalog_entry(layer, version) if is_external else None
        state = await expect(conn, asset.asset_id, entry, version["version_ordinal"], is_external=is_external)
    if publication.is_complete:
        await mark_refreshed_layer(conn, asset.asset_id, version["version_ordinal"], version["version"])
    return publication, state


async def _save(
    conn: Connection,
    asset: Asset,
    layer: LayerRow,
    version: VersionRow,
    projections: Sequence[Projection],
    actor: str | None,
) -> Publication:
    """Save the time if all projections succeeded, and the event if something has changed."""
    publication = Publication(
        asset.asset_id,
        version["version_ordinal"],
        layer["published_at"],
        layer["published_externally_at"],
        projections,
    )
    is_current = layer["published_at"] is not None and layer["published_at"] >= layer["updated_at"]
    is_published = bool(projections) and publication.is_complete and (publication.is_changed or not is_current)
    if is_published:
        published_at = await mark_layer(conn, asset.asset_id, is_published=True)
        publication = replace(publication, published_at=published_at)
    if is_published or publication.is_changed:
        await record_projections(conn, asset, "metadata_published", projections, publication.version_ordinal, actor)
    return publication


async def _unpublish(
    conn: Connection, asset: Asset, layer: LayerRow, actor: str | None
) -> tuple[Publication, ExternalState | None]:
    projections = await remove_projections(conn, asset.asset_id)
    publication = Publication(asset.asset_id, None, None, layer["published_externally_at"], projections)
    if layer["published_at"] is not None:
        await mark_layer(conn, asset.asset_id, is_published=False)
    if publication.is_changed or layer["published_at"] is not None:
        await record_projections(conn, asset, "metadata_unpublished", projections, None, actor)
    if not is_expected(layer):
        nothing = Projection(ProjectionName.EXTERNAL_CATALOG, ProjectionOutcome.NOT_APPLICABLE)
        return replace(publication, projections=[*projections, nothing]), None
    return publication, await expect(conn, asset.asset_id, None, is_external=False)


async def _sent(
    conn: Connection, publication: Publication, state: ExternalState | None, actor: str | None, external_dsn: str | None
) -> Publication:
    """Add the outcome in the external database, if it is concerned. Nothing is locked meanwhile."""
    if state is None:
        return publication
    projection = await send(conn, state, actor=actor, external_dsn=external_dsn)
    layer = await find_layer(conn, publication.asset_id)
    return replace(
        publication,
        published_externally_at=layer["published_externally_at"] if layer is not None else None,
        projections=[*publication.projections, projection],
    )
