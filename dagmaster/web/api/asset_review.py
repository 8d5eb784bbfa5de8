"""Review, clearance and export of assets."""

from typing import Annotated, Any

from fastapi import APIRouter, Query

from dagmaster.http.errors import documented
from dagmaster.model.asset import ClearanceState
from dagmaster.schemas.assets import (
    Approval,
    AssetSummary,
    ClearedAsset,
    Decision,
    Rejection,
    ReviewedVersion,
    ReviewItem,
    VersionReply,
)
from dagmaster.schemas.common import Page
from dagmaster.service.asset_contract import Approve, AssetCommand, AssetResult, Clear, Reject
from dagmaster.service.assets import decide, export_version
from dagmaster.service.context import ServiceContext
from dagmaster.store.asset_versions import get_version_row, list_review_queue
from dagmaster.store.assets import get_asset
from dagmaster.web.access import REVIEWERS, Admitted
from dagmaster.web.assets import VisibleAsset, in_name_of, platform_of
from dagmaster.web.paging import Limit, Offset, to_page
from dagmaster.web.service_context import Context
from dagmaster.web.services import Conn, Services, ServicesDep

router = APIRouter(prefix="/api/v1", tags=["review"])

DECIDED: Any = {"responses": documented(404, 409), "dependencies": [REVIEWERS]}


@router.get("/review", dependencies=[REVIEWERS])
async def list_reviews(
    caller: Admitted,
    conn: Conn,
    is_reviewable: Annotated[bool, Query(description="Only versions whose processing has completed.")] = False,
    limit: Limit = 50,
    offset: Offset = 0,
) -> Page[ReviewItem]:
    """List the versions that wait for review, oldest first."""
    rows = await list_review_queue(
        conn, platform_id=platform_of(caller), is_reviewable=is_reviewable, limit=limit + 1, offset=offset
    )
    return to_page([ReviewItem.model_validate(row) for row in rows], limit, offset)


@router.post("/assets/{asset_id}/approve", **DECIDED)
async def approve_asset(
    asset: VisibleAsset, body: Approval, caller: Admitted, services: ServicesDep, context: Context
) -> ReviewedVersion:
    """Approve the version that waits for review. The asset must be cleared, or is cleared by `clearance_level`."""
    level = ClearanceState(body.clearance_level) if body.clearance_level else None
    command = Approve(body.version_ordinal, level, body.comment)
    return await _review(in_name_of(context, caller, body.reviewer), services, asset["asset_id"], command)


@router.post("/assets/{asset_id}/versions/{ordinal}/approve", **DECIDED)
async def approve_version(
    asset: VisibleAsset,
    ordinal: int,
    caller: Admitted,
    services: ServicesDep,
    context: Context,
    body: Approval | None = None,
) -> ReviewedVersion:
    """Approve this version."""
    approval = (body or Approval()).model_copy(update={"version_ordinal": ordinal})
    return await approve_asset(asset, approval, caller, services, context)


@router.post("/assets/{asset_id}/reject", **DECIDED)
async def reject_asset(
    asset: VisibleAsset, body: Rejection, caller: Admitted, services: ServicesDep, context: Context
) -> ReviewedVersion:
    """Reject the version that waits for review; until it is resubmitted or deleted, no other can be submitted."""
    command = Reject(body.reason, body.version_ordinal)
    return await _review(in_name_of(context, caller, body.reviewer), services, asset["asset_id"], command)


@router.post("/assets/{asset_id}/versions/{ordinal}/reject", **DECIDED)
async def reject_version(
    asset: VisibleAsset, ordinal: int, body: Rejection, caller: Admitted, services: ServicesDep, context: Context
) -> ReviewedVersion:
    """Reject this version."""
    rejection = body.model_copy(update={"version_ordinal": ordinal})
    return await reject_asset(asset, rejection, caller, services, context)


@router.post("/assets/{asset_id}/clearance/cleared", **DECIDED)
async def clear_asset(
    asset: VisibleAsset, caller: Admitted, services: ServicesDep, context: Context, body: Decision | None = None
) -> ClearedAsset:
    """Clear an asset for official use only."""
    return await _clear(asset["asset_id"], caller, services, context, body, ClearanceState.OUO)


@router.post("/assets/{asset_id}/clearance/public", **DECIDED)
async def make_asset_public(
    asset: VisibleAsset, caller: Admitted, services: ServicesDep, context: Context, body: Decision | None = None
) -> ClearedAsset:
    """Clear an asset for the public; its latest approved version is exported."""
    return await _clear(asset["asset_id"], caller, services, context, body, ClearanceState.PUBLIC)


@router.post("/assets/{asset_id}/versions/{ordinal}/export", **DECIDED)
async def export_asset_version(
    asset: VisibleAsset, ordinal: int, services: ServicesDep, context: Context
) -> ReviewedVersion:
    """Queue the export of an approved version of a public asset; may be repeated."""
    await services.learn(context.conn)
    result = await export_version(context, services.definitions, asset["asset_id"], ordinal)
    return await _reviewed(context, result)


async def _clear(
    asset_id: str,
    caller: Admitted,
    services: Services,
    context: ServiceContext,
    body: Decision | None,
    level: ClearanceState,
) -> ClearedAsset:
    decision = body or Decision()
    await services.learn(context.conn)
    context = in_name_of(context, caller, decision.actor)
    result = await decide(context, services.definitions, asset_id, Clear(level, decision.reason))
    row = await get_asset(context.conn, asset_id)
    done = {"export_job_id": result.export_job_id, "warnings": list(result.warnings)}
    return ClearedAsset.model_validate({**row, **done})


async def _review(context: ServiceContext, services: Services, asset_id: str, command: AssetCommand) -> ReviewedVersion:
    await services.learn(context.conn)
    return await _reviewed(context, await decide(context, services.definitions, asset_id, command))


async def _reviewed(context: ServiceContext, result: AssetResult) -> ReviewedVersion:
    assert result.ordinal is not None
    version = await get_version_row(context.conn, result.asset_id, result.ordinal)
    return ReviewedVersion(
        asset=AssetSummary.model_validate(await get_asset(context.conn, result.asset_id)),
        version=VersionReply.model_validate(version),
        warnings=list(result.warnings),
    )
