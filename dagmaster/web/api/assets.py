"""Assets, their versions and history; reprocessing, exposure and deletion."""

from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Query

from dagmaster.errors import UnknownVersion
from dagmaster.http.asset_filter import FilterOfQuery
from dagmaster.http.errors import documented
from dagmaster.schemas.assets import (
    AssetEventReply,
    AssetReply,
    AssetSummary,
    DecidedAsset,
    Decision,
    ExposureChange,
    Reprocessing,
    Submitted,
    VersionReply,
)
from dagmaster.schemas.common import Page
from dagmaster.service.asset_contract import DeleteAsset, DeleteVersion, Expose, Reprocess
from dagmaster.service.asset_submission import reprocess
from dagmaster.service.assets import decide
from dagmaster.service.context import ServiceContext
from dagmaster.store.asset_versions import get_version_row, list_versions
from dagmaster.store.assets import AssetRow, get_asset, list_asset_events
from dagmaster.store.assets import list_assets as list_asset_rows
from dagmaster.web.access import ASSET_READERS, ASSET_SUBMITTERS, REVIEWERS, Admitted
from dagmaster.web.api.submission import submitted_reply
from dagmaster.web.assets import Actor, IncludeDeleted, VisibleAsset, in_name_of, may_see_deleted, platform_of
from dagmaster.web.paging import Limit, Offset, to_page
from dagmaster.web.service_context import Context
from dagmaster.web.services import Conn, Services, ServicesDep

router = APIRouter(prefix="/api/v1/assets", tags=["assets"])

MAX_VERSIONS = 1000
NOT_FOUND: Any = {"responses": documented(404)}
CHANGED: Any = {"responses": documented(404, 409)}
CREATED: Any = {"status_code": 201, "responses": documented(404, 409)}
Ordinal = Annotated[int, Query(ge=0)]
Reason = Annotated[str | None, Query(max_length=2000)]


@router.get("", dependencies=[ASSET_READERS])
async def list_assets(
    caller: Admitted,
    conn: Conn,
    where: FilterOfQuery,
    include_deleted: IncludeDeleted = False,
    limit: Limit = 50,
    offset: Offset = 0,
) -> Page[AssetSummary]:
    """List assets, newest first."""
    own = platform_of(caller)
    if own is not None and where.platform_id not in (None, own):
        return to_page([], limit, offset)
    with_deleted = may_see_deleted(caller, include_deleted)
    where = replace(where, platform_id=own or where.platform_id, include_deleted=with_deleted)
    rows = await list_asset_rows(conn, where, limit=limit + 1, offset=offset)
    return to_page([AssetSummary.model_validate(row) for row in rows], limit, offset)


@router.get("/{asset_id}", dependencies=[ASSET_READERS], **NOT_FOUND)
async def show_asset(
    asset: VisibleAsset, caller: Admitted, conn: Conn, include_deleted: IncludeDeleted = False
) -> AssetReply:
    """Get an asset with its versions, latest first."""
    with_deleted = may_see_deleted(caller, include_deleted)
    versions = await list_versions(conn, asset["asset_id"], include_deleted=with_deleted, limit=MAX_VERSIONS)
    return AssetReply.model_validate({**asset, "versions": versions})


@router.get("/{asset_id}/versions", dependencies=[ASSET_READERS], **NOT_FOUND)
async def list_asset_versions(
    asset: VisibleAsset,
    caller: Admitted,
    conn: Conn,
    include_deleted: IncludeDeleted = False,
    limit: Limit = 50,
    offset: Offset = 0,
) -> Page[VersionReply]:
    """List the versions of an asset, latest first."""
    with_deleted = may_see_deleted(caller, include_deleted)
    rows = await list_versions(conn, asset["asset_id"], include_deleted=with_deleted, limit=limit + 1, offset=offset)
    return to_page([VersionReply.model_validate(row) for row in rows], limit, offset)


@router.get("/{asset_id}/versions/latest", dependencies=[ASSET_READERS], **NOT_FOUND)
async def show_latest_version(asset: VisibleAsset, conn: Conn) -> VersionReply:
    """Get the latest version: the highest approved ordinal."""
    ordinal = asset["latest_approved_version_ordinal"]
    if ordinal is None:
        raise UnknownVersion(f"no version of asset {asset['asset_id']!r} is approved")
    return VersionReply.model_validate(await get_version_row(conn, asset["asset_id"], ordinal))


@router.get("/{asset_id}/versions/{ordinal}", dependencies=[ASSET_READERS], **NOT_FOUND)
async def show_version(
    asset: VisibleAsset, ordinal: int, caller: Admitted, conn: Conn, include_deleted: IncludeDeleted = False
) -> VersionReply:
    """Get a version of an asset."""
    version = await get_version_row(conn, asset["asset_id"], ordinal)
    if version["deleted_at"] is not None and not may_see_deleted(caller, include_deleted):
        raise UnknownVersion(f"version {ordinal} of asset {asset['asset_id']!r} is deleted")
    return VersionReply.model_validate(version)


@router.get("/{asset_id}/history", dependencies=[ASSET_READERS], **NOT_FOUND)
async def list_history(
    asset: VisibleAsset, conn: Conn, version_ordinal: Ordinal | None = None, limit: Limit = 200, offset: Offset = 0
) -> Page[AssetEventReply]:
    """List the history of an asset, oldest first."""
    rows = await list_asset_events(conn, asset["asset_id"], ordinal=version_ordinal, limit=limit + 1, offset=offset)
    return to_page([AssetEventReply.model_validate(row) for row in rows], limit, offset)


@router.post("/{asset_id}/versions/{ordinal}/reprocess", dependencies=[REVIEWERS], **CREATED)
async def reprocess_version(
    asset: VisibleAsset, ordinal: int, services: ServicesDep, context: Context, body: Reprocessing | None = None
) -> Submitted:
    """Process a version again: a new revision; ordinal and approval stay."""
    return await _reprocess(asset, ordinal, services, context, body, resubmits=False)


@router.post("/{asset_id}/versions/{ordinal}/resubmit", dependencies=[ASSET_SUBMITTERS], **CREATED)
async def resubmit_version(
    asset: VisibleAsset, ordinal: int, services: ServicesDep, context: Context, body: Reprocessing | None = None
) -> Submitted:
    """Send a version that was rejected, or whose processing failed, to review again with a new revision."""
    return await _reprocess(asset, ordinal, services, context, body, resubmits=True)


async def _reprocess(
    asset: AssetRow,
    ordinal: int,
    services: Services,
    context: ServiceContext,
    body: Reprocessing | None,
    *,
    resubmits: bool,
) -> Submitted:
    body = body or Reprocessing()
    command = Reprocess(
        ordinal,
        workflow=body.workflow_id,
        inputs=body.input_params,
        priority=body.priority,
        version_label=body.version_label,
        resubmits=resubmits,
    )
    await services.learn(context.conn)
    return submitted_reply(await reprocess(context, services.definitions, asset["asset_id"], command))


@router.patch("/{asset_id}", dependencies=[REVIEWERS], **CHANGED)
async def change_exposure(asset: VisibleAsset, body: ExposureChange, context: Context) -> DecidedAsset:
    """Set which approved versions the public sees: only the latest, or all."""
    return await _decided(asset, context, Expose(body.exposure_mode))


@router.delete("/{asset_id}", dependencies=[REVIEWERS], **CHANGED)
async def delete_asset(
    asset: VisibleAsset, caller: Admitted, context: Context, reason: Reason = None, actor: Actor = None
) -> DecidedAsset:
    """Delete an asset: it is no longer listed and accepts no submissions. Jobs are cancelled; the history stays."""
    return await _decided(asset, in_name_of(context, caller, actor), DeleteAsset(reason))


@router.delete("/{asset_id}/versions/{ordinal}", dependencies=[ASSET_SUBMITTERS], **CHANGED)
async def delete_version(
    asset: VisibleAsset, ordinal: int, caller: Admitted, context: Context, reason: Reason = None, actor: Actor = None
) -> DecidedAsset:
    """Delete a version: the next submission gets the next ordinal. Its jobs are cancelled."""
    return await _decided(asset, in_name_of(context, caller, actor), DeleteVersion(ordinal, reason))


@router.post("/{asset_id}/versions/{ordinal}/unpublish", dependencies=[ASSET_SUBMITTERS], **CHANGED)
async def unpublish_version(
    asset: VisibleAsset, ordinal: int, caller: Admitted, context: Context, body: Decision | None = None
) -> DecidedAsset:
    """Withdraw a version, the same as deleting it."""
    decision = body or Decision()
    return await _decided(asset, in_name_of(context, caller, decision.actor), DeleteVersion(ordinal, decision.reason))


async def _decided(
    asset: AssetRow, context: ServiceContext, command: DeleteAsset | DeleteVersion | Expose
) -> DecidedAsset:
    result = await decide(context, None, asset["asset_id"], command)
    row = await get_asset(context.conn, asset["asset_id"])
    return DecidedAsset.model_validate({**row, "warnings": list(result.warnings)})
