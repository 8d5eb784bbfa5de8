"""Assets, their versions and platforms: reads from views, changes through the API."""

from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query

from dagmaster.errors import UnknownVersion
from dagmaster.gateway import decisions
from dagmaster.gateway.access import OPERATORS, READERS, REVIEWERS, Caller
from dagmaster.gateway.decisions import Target, version_reply, visible_target
from dagmaster.gateway.services import Conn, Limit, ServicesDep
from dagmaster.http.asset_filter import FilterOfQuery
from dagmaster.http.errors import documented
from dagmaster.http.paging import Offset, to_page
from dagmaster.schemas.assets import PlatformReply
from dagmaster.schemas.common import Page
from dagmaster.schemas.gateway import (
    AssetOutcome,
    DecisionReason,
    GatewayAsset,
    GatewayAssetDetail,
    GatewayVersion,
    ReviewApproval,
    ReviewOutcome,
    ReviewRejection,
)
from dagmaster.store import gateway as store

router = APIRouter(prefix="/api/assets", tags=["assets"])

MAX_VERSIONS = 500
NOT_FOUND: Any = {"responses": documented(404)}
FORWARDED: Any = {"responses": documented(404, 409, 502, 504)}
Reason = Annotated[str | None, Query(max_length=2000)]


async def asset_of_path(asset_id: str, caller: Caller, services: ServicesDep) -> Target:
    return await visible_target(services, caller, asset_id)


async def version_of_path(asset_id: str, ordinal: int, caller: Caller, services: ServicesDep) -> Target:
    return await visible_target(services, caller, asset_id, ordinal)


VisibleAsset = Annotated[Target, Depends(asset_of_path)]
VisibleVersion = Annotated[Target, Depends(version_of_path)]


@router.get("", dependencies=[READERS])
async def list_assets(
    caller: Caller, conn: Conn, where: FilterOfQuery, limit: Limit = 50, offset: Offset = 0
) -> Page[GatewayAsset]:
    """List assets, newest first."""
    own = caller.platform_id
    if own is not None and where.platform_id not in (None, own):
        return to_page([], limit, offset)
    where = replace(where, platform_id=own or where.platform_id)
    rows = await store.list_assets(conn, where, limit=limit + 1, offset=offset)
    return to_page([GatewayAsset.model_validate(row) for row in rows], limit, offset)


@router.get("/platforms", dependencies=[READERS])
async def list_platforms(caller: Caller, conn: Conn) -> list[PlatformReply]:
    """List the platforms that the key may act for."""
    return [PlatformReply.model_validate(row) for row in await store.list_platforms(conn, caller.platform_id)]


@router.get("/{asset_id}", dependencies=[READERS], **NOT_FOUND)
async def show_asset(asset_id: str, caller: Caller, services: ServicesDep, conn: Conn) -> GatewayAssetDetail:
    """Get an asset with its versions, latest first."""
    asset = await store.get_asset(conn, asset_id, caller.platform_id)
    versions = await store.list_versions(conn, asset_id, limit=MAX_VERSIONS)
    return GatewayAssetDetail.model_validate({**asset, "versions": [version_reply(services, row) for row in versions]})


@router.get("/{asset_id}/versions", dependencies=[READERS], **NOT_FOUND)
async def list_versions(
    asset_id: str, caller: Caller, services: ServicesDep, conn: Conn, limit: Limit = 50, offset: Offset = 0
) -> Page[GatewayVersion]:
    """List the versions of an asset, latest first."""
    await store.get_asset(conn, asset_id, caller.platform_id)
    rows = await store.list_versions(conn, asset_id, limit=limit + 1, offset=offset)
    return to_page([version_reply(services, row) for row in rows], limit, offset)


@router.get("/{asset_id}/versions/latest", dependencies=[READERS], **NOT_FOUND)
async def show_latest_version(asset_id: str, caller: Caller, services: ServicesDep, conn: Conn) -> GatewayVersion:
    """Get the latest version: the highest approved ordinal."""
    asset = await store.get_asset(conn, asset_id, caller.platform_id)
    ordinal = asset["latest_approved_version_ordinal"]
    if ordinal is None:
        raise UnknownVersion(f"no version of asset {asset_id!r} is approved")
    return version_reply(services, await store.get_version(conn, asset_id, ordinal))


@router.get("/{asset_id}/versions/{ordinal}", dependencies=[READERS], **NOT_FOUND)
async def show_version(
    asset_id: str, ordinal: int, caller: Caller, services: ServicesDep, conn: Conn
) -> GatewayVersion:
    """Get a version of an asset."""
    await store.get_asset(conn, asset_id, caller.platform_id)
    return version_reply(services, await store.get_version(conn, asset_id, ordinal))


@router.post("/{asset_id}/approve", dependencies=[REVIEWERS], **FORWARDED)
async def approve_asset(
    asset: VisibleAsset, caller: Caller, services: ServicesDep, body: ReviewApproval | None = None
) -> ReviewOutcome:
    """Approve the version that waits for review."""
    return await decisions.approve(services, caller, asset, body or ReviewApproval())


@router.post("/{asset_id}/versions/{ordinal}/approve", dependencies=[REVIEWERS], **FORWARDED)
async def approve_version(
    version: VisibleVersion, caller: Caller, services: ServicesDep, body: ReviewApproval | None = None
) -> ReviewOutcome:
    """Approve this version."""
    return await decisions.approve(services, caller, version, body or ReviewApproval())


@router.post("/{asset_id}/reject", dependencies=[REVIEWERS], **FORWARDED)
async def reject_asset(
    asset: VisibleAsset, body: ReviewRejection, caller: Caller, services: ServicesDep
) -> ReviewOutcome:
    """Reject the version that waits for review."""
    return await decisions.reject(services, caller, asset, body)


@router.post("/{asset_id}/versions/{ordinal}/reject", dependencies=[REVIEWERS], **FORWARDED)
async def reject_version(
    version: VisibleVersion, body: ReviewRejection, caller: Caller, services: ServicesDep
) -> ReviewOutcome:
    """Reject this version."""
    return await decisions.reject(services, caller, version, body)


@router.post("/{asset_id}/clearance/cleared", dependencies=[REVIEWERS], **FORWARDED)
async def clear_asset(
    asset: VisibleAsset, caller: Caller, services: ServicesDep, body: DecisionReason | None = None
) -> AssetOutcome:
    """Clear an asset for official use only."""
    return await decisions.clear(services, caller, asset, "cleared", body.reason if body else None)


@router.post("/{asset_id}/clearance/public", dependencies=[REVIEWERS], **FORWARDED)
async def make_asset_public(
    asset: VisibleAsset, caller: Caller, services: ServicesDep, body: DecisionReason | None = None
) -> AssetOutcome:
    """Clear an asset for the public."""
    return await decisions.clear(services, caller, asset, "public", body.reason if body else None)


@router.delete("/{asset_id}", dependencies=[OPERATORS], **FORWARDED)
async def delete_asset(
    asset: VisibleAsset, caller: Caller, services: ServicesDep, reason: Reason = None
) -> AssetOutcome:
    """Delete an asset: it is no longer listed and accepts no submissions."""
    return await decisions.delete_asset(services, caller, asset, reason)


@router.delete("/{asset_id}/versions/{ordinal}", dependencies=[READERS], **FORWARDED)
async def delete_version(
    version: VisibleVersion, caller: Caller, services: ServicesDep, reason: Reason = None
) -> AssetOutcome:
    """Withdraw a version: the next submission gets the next ordinal."""
    return await decisions.delete_version(services, caller, version, reason)
