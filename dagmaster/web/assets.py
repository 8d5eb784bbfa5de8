"""The assets that a caller may see and decide on, and the actor of a decision."""

from dataclasses import replace
from typing import Annotated

from fastapi import Depends, Query
from fastapi.requests import HTTPConnection

from dagmaster.assets.exposure import Audience, catalogue_scope
from dagmaster.errors import Forbidden, Unauthorized, UnknownAsset
from dagmaster.model.access import Role
from dagmaster.service.context import ServiceContext
from dagmaster.store.assets import AssetRow, get_asset
from dagmaster.store.stac_items import Scope
from dagmaster.web.access import OPERATING, READING, Admitted, Caller, caller_of
from dagmaster.web.services import Conn, Services, ServicesDep

Actor = Annotated[str | None, Query(max_length=128, description="Actor of the decision; for operators and gateways.")]
IncludeDeleted = Annotated[bool, Query(description="Include deleted assets and versions; for operators.")]


def platform_of(caller: Caller) -> str | None:
    """The one platform whose assets the caller sees; None means all."""
    if caller.is_partner and caller.platform_id is None:
        raise Forbidden("this key is not bound to a platform; create one with `dagmaster keys create --platform`")
    return caller.platform_id


def check_platform(caller: Caller, platform_id: str) -> None:
    own = platform_of(caller)
    if own is not None and own != platform_id:
        raise Forbidden(f"this key is for platform {own!r}, not {platform_id!r}")


def may_see_deleted(caller: Caller, include_deleted: bool) -> bool:
    return include_deleted and caller.role in OPERATING


async def visible_asset(
    asset_id: str, caller: Admitted, conn: Conn, include_deleted: IncludeDeleted = False
) -> AssetRow:
    """The asset of the path. Raises UnknownAsset also if the caller may not see it."""
    asset = await get_asset(conn, asset_id)
    own = platform_of(caller)
    is_foreign = own is not None and asset["platform_id"] != own
    is_gone = asset["deleted_at"] is not None and not may_see_deleted(caller, include_deleted)
    if is_foreign or is_gone:
        raise UnknownAsset(f"there is no asset {asset_id!r}")
    return asset


VisibleAsset = Annotated[AssetRow, Depends(visible_asset, scope="function")]


def in_name_of(context: ServiceContext, caller: Caller, name: str | None) -> ServiceContext:
    """The actor: operators and the gateway may name another one, all others act in their own name."""
    return replace(context, actor=name) if name and caller.role in OPERATING else context


async def caller_or_public(request: HTTPConnection, services: Services) -> Caller | None:
    """The caller; None without a key."""
    try:
        return await caller_of(request, services)
    except Unauthorized:
        if "authorization" in request.headers or "x-api-key" in request.headers:
            raise
        return None


def audience_of(caller: Caller | None, platform_id: str | None) -> Audience:
    """The audience for an asset of this platform. Partners, and callers without a key, are the public."""
    if caller is None or caller.role not in READING or caller.platform_id not in (None, platform_id):
        return Audience.PUBLIC
    return Audience.INTERNAL if caller.role is Role.VIEWER else Audience.REVIEWERS


async def catalogue_scope_of(request: HTTPConnection, services: ServicesDep) -> Scope:
    """The part of the catalogue that the caller sees, by `audience_of` of each asset."""
    caller = await caller_or_public(request, services)
    if caller is None or caller.role not in READING:
        return catalogue_scope(Audience.PUBLIC)
    return catalogue_scope(Audience.INTERNAL, caller.platform_id)


CatalogueScope = Annotated[Scope, Depends(catalogue_scope_of)]
