"""Request the review of a version, approve or reject it, and make it public."""

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import Field

from dagmaster.asset_handlers.decision_context import VersionParams, decision_context, known_definitions
from dagmaster.assets import review
from dagmaster.errors import Conflict
from dagmaster.handlers.contract import HandlerContext
from dagmaster.handlers.registry import handler
from dagmaster.ids import JobId
from dagmaster.model.asset import (
    REVIEW_REQUESTED,
    ApprovalState,
    Asset,
    AssetVersion,
    ClearanceState,
    clearance_steps,
)
from dagmaster.service import assets
from dagmaster.service.asset_contract import Approve, AssetCommand, Clear, Reject
from dagmaster.service.asset_transaction import lock_version, save, transact
from dagmaster.service.context import ServiceContext
from dagmaster.store.asset_versions import get_version_row
from dagmaster.store.assets import get_asset, has_asset_event


@handler("trigger_approval", params=VersionParams, isolation="thread")
async def trigger_approval(ctx: HandlerContext, params: VersionParams) -> dict[str, Any]:
    """Request the review of a processed version: recorded in the history of the asset, once per job."""
    async with decision_context(ctx) as context:

        async def attempt() -> bool:
            asset, version = await lock_version(context.conn, params.asset_id, params.version_ordinal)
            decision = review.Decision(context.actor, datetime.now(UTC), params.reason)
            change = review.request_review(asset, version, decision, JobId(ctx.job_id))
            if await has_asset_event(context.conn, asset.asset_id, REVIEW_REQUESTED, JobId(ctx.job_id)):
                return False
            await save(context.conn, asset, change, version)
            return True

        is_changed = await transact(context, attempt)
        return await _state(context, params, is_changed=is_changed)


class ApproveParams(VersionParams):
    """`clearance_level` clears the asset in the same step, as the API does."""

    clearance_level: Literal["ouo", "public"] | None = None


@handler("approve_dataset", params=ApproveParams, isolation="thread")
async def approve_dataset(ctx: HandlerContext, params: ApproveParams) -> dict[str, Any]:
    """Approve a version. If the asset is public, its export is queued. An approved version stays approved."""
    level = ClearanceState(params.clearance_level) if params.clearance_level is not None else None
    async with decision_context(ctx) as context:
        asset, version = await _read(context, params)
        if version.approval_state is not ApprovalState.APPROVED:
            return await _decide(context, params, Approve(params.version_ordinal, level, params.reason))
        if level is not None and clearance_steps(asset.clearance_state, level):
            return await _decide(context, params, Clear(level, params.reason))
        return await _state(context, params, is_changed=False)


class RejectParams(VersionParams):
    reason: Annotated[str, Field(min_length=1, max_length=2000)]


@handler("reject_dataset", params=RejectParams, isolation="thread")
async def reject_dataset(ctx: HandlerContext, params: RejectParams) -> dict[str, Any]:
    """Reject a version, with a reason for its submitter. A rejected version stays rejected."""
    async with decision_context(ctx) as context:
        _, version = await _read(context, params)
        if version.approval_state is ApprovalState.REJECTED:
            return await _state(context, params, is_changed=False)
        return await _decide(context, params, Reject(params.reason, params.version_ordinal))


@handler("promote_to_external", params=VersionParams, isolation="thread")
async def promote_to_external(ctx: HandlerContext, params: VersionParams) -> dict[str, Any]:
    """Make the asset of an approved version public, and export the version unless that is done or in progress."""
    async with decision_context(ctx) as context:
        asset, version = await _read(context, params)
        if version.approval_state is not ApprovalState.APPROVED:
            raise Conflict(f"version {params.version_ordinal} is {version.approval_state}; approve it first")
        warnings: tuple[str, ...] = ()
        is_changed = asset.clearance_state is not ClearanceState.PUBLIC
        if is_changed:
            made_public = await _decide(context, params, Clear(ClearanceState.PUBLIC, params.reason))
            warnings = tuple(made_public["warnings"])
        row = await get_version_row(context.conn, params.asset_id, params.version_ordinal)
        if row["export_job_id"] is None or row["export_error"] is not None:
            definitions = await known_definitions(context.conn, context.settings)
            await assets.export_version(context, definitions, params.asset_id, params.version_ordinal)
            is_changed = True
        return await _state(context, params, is_changed=is_changed, warnings=warnings)


async def _read(context: ServiceContext, params: VersionParams) -> tuple[Asset, AssetVersion]:
    """Raises UnknownAsset and UnknownVersion, also for deleted ones."""
    async with context.conn.transaction():
        asset, version = await lock_version(context.conn, params.asset_id, params.version_ordinal)
    review.check_live(asset, version)
    return asset, version


async def _decide(context: ServiceContext, params: VersionParams, command: AssetCommand) -> dict[str, Any]:
    definitions = await known_definitions(context.conn, context.settings)
    result = await assets.decide(context, definitions, params.asset_id, command)
    return await _state(context, params, is_changed=True, warnings=result.warnings)


async def _state(
    context: ServiceContext, params: VersionParams, *, is_changed: bool, warnings: tuple[str, ...] = ()
) -> dict[str, Any]:
    asset = await get_asset(context.conn, params.asset_id)
    version = await get_version_row(context.conn, params.asset_id, params.version_ordinal)
    return {
        "asset_id": params.asset_id,
        "version_ordinal": params.version_ordinal,
        "approval_state": version["approval_state"],
        "clearance_state": asset["clearance_state"],
        "export_job_id": str(version["export_job_id"]) if version["export_job_id"] is not None else None,
        "actor": context.actor,
        "is_changed": is_changed,
        "warnings": list(warnings),
    }
