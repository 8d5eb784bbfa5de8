"""Which assets a caller may see and decide on, and in whose name."""

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
from dagmaster.web.access import Admitted, Caller, caller_of
from dagmaster.web.services import Conn, Given, Services

STAFF = frozenset({Role.ADMIN, Role.OPERATOR})
INTERNAL = frozenset({Role.ADMIN, Role.OPERATOR, Role.REVIEWER, Role.VIEWER})

Actor = Annotated[str | None, Query(max_length=128, description="Who decides; for operators and gateways.")]
IncludeDeleted = Annotated[bool, Query(description="Include what is deleted; for operators.")]


def platform_of(caller: Caller) -> str | None:
    """The one platform whose assets the caller sees; None stands for all."""
    if caller.is_partner and caller.platform_id is None:
        raise Forbidden("this key is not bound to a platform; create one with `dagmaster keys create --platform`")
    return caller.platform_id


def check_platform(caller: Caller, platform_id: str) -> None:
    own = platform_of(caller)
    if own is not None and own != platform_id:
        raise Forbidden(f"this key is for platform {own!r}, not {platform_id!r}")


def may_see_deleted(caller: Caller, include_deleted: bool) -> bool:
    return include_deleted and caller.role in STAFF


async def visible_asset(
    asset_id: str, caller: Admitted, conn: Conn, include_deleted: IncludeDeleted = False
) -> AssetRow:
    """The asset of the path. What the caller must not see does not exist for it."""
    asset = await get_asset(conn, asset_id)
    own = platform_of(caller)
    is_foreign = own is not None and asset["platform_id"] != own
    is_gone = asset["deleted_at"] is not None and not may_see_deleted(caller, include_deleted)
    if is_foreign or is_gone:
        raise UnknownAsset(f"there is no asset {asset_id!r}")
    return asset


VisibleAsset = Annotated[AssetRow, Depends(visible_asset, scope="function")]


def in_name_of(context: ServiceContext, caller: Caller, name: str | None) -> ServiceContext:
    """Operators, and the gateway, act in the name of others; everybody else in its own."""
    return replace(context, actor=name) if name and caller.role in STAFF else context


async def caller_or_public(request: HTTPConnection, services: Services) -> Caller | None:
    """Who asks for the data of assets; None for whoever shows no key."""
    try:
        return await caller_of(request, services)
    except Unauthorized:
        if "authorization" in request.headers or "x-api-key" in request.headers:
            raise
        return None


def audience_of(caller: Caller | None, platform_id: str | None) -> Audience:
    """Who asks for the data of an asset of this platform. Partners are outside, and so is whoever shows no key."""
    if caller is None or caller.role not in INTERNAL or caller.platform_id not in (None, platform_id):
        return Audience.PUBLIC
    return Audience.INTERNAL if caller.role is Role.VIEWER else Audience.REVIEWERS


async def catalogue_scope_of(request: HTTPConnection, services: Given) -> Scope:
    """What the caller sees of the catalogue: what `audience_of` says of each asset."""
    caller = await caller_or_public(request, services)
    if caller is None or caller.role not in INTERNAL:
        return catalogue_scope(Audience.PUBLIC)
    return catalogue_scope(Audience.INTERNAL, caller.platform_id)


CatalogueScope = Annotated[Scope, Depends(catalogue_scope_of)]
