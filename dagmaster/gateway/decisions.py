"""Decisions on assets, sent to the API on behalf of the caller."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from dagmaster.client import asset_calls
from dagmaster.errors import Conflict, UnknownAsset
from dagmaster.gateway.services import Services
from dagmaster.schemas.assets import Approval, DecidedAsset, Decision, Rejection, ReviewedVersion
from dagmaster.schemas.gateway import (
    AssetOutcome,
    GatewayAsset,
    GatewayVersion,
    ReviewApproval,
    ReviewOutcome,
    ReviewRejection,
    VersionTarget,
)
from dagmaster.store.gateway import KeyHolder, get_asset, get_request, get_version


@dataclass(frozen=True, slots=True)
class Target:
    """A version of an asset that the caller may see; without an ordinal, the unresolved version."""

    asset_id: str
    ordinal: int | None = None


async def find_target(services: Services, caller: KeyHolder, named: VersionTarget) -> Target:
    """Raises UnknownRequest or UnknownAsset, also if the caller may not see it."""
    if named.request_id is None:
        assert named.asset_id is not None
        return await visible_target(services, caller, named.asset_id, named.version_ordinal)
    async with services.connection() as conn:
        request = await get_request(conn, named.request_id, caller.platform_id)
    if request["asset_id"] is None:
        raise UnknownAsset(f"request {named.request_id!r} is not about an asset")
    return Target(request["asset_id"], request["version_ordinal"])


async def visible_target(services: Services, caller: KeyHolder, asset_id: str, ordinal: int | None = None) -> Target:
    """Raises UnknownAsset, also for an asset of another platform."""
    async with services.connection() as conn:
        await get_asset(conn, asset_id, caller.platform_id)
    return Target(asset_id, ordinal)


async def approve(services: Services, caller: KeyHolder, target: Target, body: ReviewApproval) -> ReviewOutcome:
    approval = Approval(
        version_ordinal=target.ordinal,
        reviewer=caller.name,
        clearance_level=body.clearance_level,
        comment=body.comment,
    )
    return await _outcome(services, await services.ask(asset_calls.approve(target.asset_id, approval)))


async def reject(services: Services, caller: KeyHolder, target: Target, body: ReviewRejection) -> ReviewOutcome:
    rejection = Rejection(version_ordinal=target.ordinal, reviewer=caller.name, reason=body.reason)
    return await _outcome(services, await services.ask(asset_calls.reject(target.asset_id, rejection)))


async def clear(
    services: Services, caller: KeyHolder, target: Target, level: Literal["cleared", "public"], reason: str | None
) -> AssetOutcome:
    decision = Decision(actor=caller.name, reason=reason)
    cleared = await services.ask(asset_calls.clear(target.asset_id, decision, is_public=level == "public"))
    return _decided(services, cleared)


async def delete_asset(services: Services, caller: KeyHolder, target: Target, reason: str | None) -> AssetOutcome:
    decision = Decision(actor=caller.name, reason=reason)
    return _decided(services, await services.ask(asset_calls.delete(target.asset_id, None, decision)))


async def delete_version(services: Services, caller: KeyHolder, target: Target, reason: str | None) -> AssetOutcome:
    """Without an ordinal, the version that waits for review or was rejected."""
    ordinal = target.ordinal
    if ordinal is None:
        async with services.connection() as conn:
            ordinal = (await get_asset(conn, target.asset_id, caller.platform_id))["unresolved_ordinal"]
    if ordinal is None:
        raise Conflict("no version of the asset waits for review or was rejected; name one by version_ordinal")
    call = asset_calls.delete(target.asset_id, ordinal, Decision(actor=caller.name, reason=reason))
    return _decided(services, await services.ask(call))


def version_reply(services: Services, row: Mapping[str, Any]) -> GatewayVersion:
    return GatewayVersion.model_validate({**row, "processing_error": services.scrubber.value(row["processing_error"])})


def _decided(services: Services, asset: DecidedAsset) -> AssetOutcome:
    return AssetOutcome.model_validate({**asset.model_dump(), "warnings": services.scrubber.value(asset.warnings)})


async def _outcome(services: Services, reviewed: ReviewedVersion) -> ReviewOutcome:
    """Read from the views: the API's own reply names nodes and jobs."""
    version = reviewed.version
    async with services.connection() as conn:
        row = await get_version(conn, version.asset_id, version.version_ordinal)
    return ReviewOutcome(
        asset=GatewayAsset.model_validate(reviewed.asset.model_dump()),
        version=version_reply(services, row),
        warnings=services.scrubber.value(reviewed.warnings),
    )
