"""Withdraw versions: remove their public copies and catalogue entries."""

import asyncio
from datetime import UTC, datetime
from time import monotonic
from typing import Any

from dagmaster.asset_handlers.decision_context import VersionParams, decision_context
from dagmaster.assets import layers, review
from dagmaster.errors import Conflict, JobEnded, UnknownJob
from dagmaster.handlers.contract import HandlerContext, Retry
from dagmaster.handlers.registry import handler
from dagmaster.ids import JobId
from dagmaster.model.asset import Asset, AssetVersion, DataType
from dagmaster.model.states import JOB_TERMINAL
from dagmaster.service import assets
from dagmaster.service.asset_contract import DeleteVersion
from dagmaster.service.asset_transaction import save, transact
from dagmaster.service.context import ServiceContext
from dagmaster.storage import Storage, open_storage
from dagmaster.store.asset_versions import find_version, get_version_row
from dagmaster.store.assets import lock_asset
from dagmaster.store.job_control import request_cancel
from dagmaster.store.jobs import get_job_head
from dagmaster.store.layers import drop_tables_of_version
from dagmaster.store.stac_items import remove_items_of_version

EXTERNAL = "external/"
MAX_FILES = 100_000
EXPORT_ENDS_WITHIN_SECONDS = 60.0
POLL_SECONDS = 0.1


@handler("unpublish_raster", params=VersionParams, isolation="thread")
async def unpublish_raster(ctx: HandlerContext, params: VersionParams) -> dict[str, Any]:
    """Withdraw a version of a raster: first its public copies, then the version and its entries in the catalogue."""
    async with decision_context(ctx) as context:
        return await _unpublish(context, params, DataType.RASTER)


@handler("unpublish_vector", params=VersionParams, isolation="thread")
async def unpublish_vector(ctx: HandlerContext, params: VersionParams) -> dict[str, Any]:
    """Like unpublish_raster, for a version of a vector layer; also drops the tables that jobs created for it."""
    async with decision_context(ctx) as context:
        report = await _unpublish(context, params, DataType.VECTOR)
        tables = await drop_tables_of_version(context.conn, params.asset_id, params.version_ordinal)
        return {**report, "dropped_tables": tables}


async def _unpublish(context: ServiceContext, params: VersionParams, data_type: DataType) -> dict[str, Any]:
    """Each step is idempotent. Once the version is withdrawn, nothing of it is public.

    An export that is queued meanwhile is cancelled with the version; files it has copied by then are removed after it.
    """
    storage = open_storage(context.settings)
    asset, version = await _read(context, params)
    if asset.data_type is not data_type:
        raise Conflict(f"asset {asset.asset_id!r} is a {asset.data_type} dataset; use unpublish_{asset.data_type}")
    removed = await _remove_copies(context, storage, params)
    if asset.deleted_at is None and version.deleted_at is None:
        await assets.decide(context, None, params.asset_id, DeleteVersion(params.version_ordinal, params.reason))
    removed += await _remove_copies(context, storage, params)
    await _refresh_layer(context, params.asset_id)
    items = await remove_items_of_version(context.conn, params.asset_id, params.version_ordinal)
    row = await get_version_row(context.conn, params.asset_id, params.version_ordinal)
    if removed or row["external_blob_path"] is not None:  # An interrupted attempt may have removed the files.
        await _forget_export(context, params, len(removed))
    return {
        "asset_id": params.asset_id,
        "version_ordinal": params.version_ordinal,
        "removed_files": removed,
        "removed_items": items,
        "actor": context.actor,
    }


async def _read(context: ServiceContext, params: VersionParams) -> tuple[Asset, AssetVersion]:
    """Includes deleted versions: an interrupted attempt may have deleted it. Raises Conflict."""
    async with context.conn.transaction():
        asset = await lock_asset(context.conn, params.asset_id)
        version = await find_version(context.conn, params.asset_id, params.version_ordinal)
    if version is None:
        raise Conflict(f"asset {params.asset_id!r} has no version {params.version_ordinal}")
    return asset, version


async def _remove_copies(context: ServiceContext, storage: Storage, params: VersionParams) -> list[str]:
    """Remove all files of the version in the zone external, after its export has stopped."""
    row = await get_version_row(context.conn, params.asset_id, params.version_ordinal)
    if row["export_job_id"] is not None:
        await _stop(context, row["export_job_id"], params.reason)
    listed = await storage.list(f"{EXTERNAL}{params.asset_id}/{params.version_ordinal}", limit=MAX_FILES)
    references = {file.reference for file in listed}
    if (copy := row["external_blob_path"]) is not None and copy.startswith(EXTERNAL):
        references.add(copy)  # A custom workflow may export to another path.
    # The index goes first: it must not name deleted files.
    ordered = sorted(references, key=lambda reference: (reference != copy, reference))
    return [reference for reference in ordered if await storage.remove(reference)]


async def _stop(context: ServiceContext, job_id: JobId, reason: str | None) -> None:
    """Cancel the job, and wait until it has ended. Raises Retry if that takes too long."""
    try:
        await request_cancel(context.conn, job_id, actor=context.actor, reason=reason or "the version is withdrawn")
    except (JobEnded, UnknownJob):
        return
    deadline = monotonic() + EXPORT_ENDS_WITHIN_SECONDS
    while (await get_job_head(context.conn, job_id))["status"] not in JOB_TERMINAL:
        if monotonic() > deadline:
            raise Retry(f"the export, job {job_id}, does not end; the version is still public")
        await asyncio.sleep(POLL_SECONDS)


async def _refresh_layer(context: ServiceContext, asset_id: str) -> None:
    """Make maps show another version or none, before the version is withdrawn."""
    dsn = context.settings.external_dsn()
    publication = await layers.refresh(context.conn, asset_id, actor=context.actor, external_dsn=dsn)
    if publication is not None and publication.errors:
        raise Retry(f"the published layer still shows the version: {'; '.join(publication.errors)}")


async def _forget_export(context: ServiceContext, params: VersionParams, files: int) -> None:
    async def attempt() -> None:
        asset, version = await _read(context, params)
        decision = review.Decision(context.actor, datetime.now(UTC), params.reason)
        await save(context.conn, asset, review.forget_export(version, decision, files), version)

    await transact(context, attempt)
