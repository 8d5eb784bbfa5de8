"""Where the data of an asset is served: resolved by approval, clearance and exposure."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request

from dagmaster.assets.exposure import Audience, check_asset, check_version, parse_version, select_ordinal
from dagmaster.errors import Forbidden, UnknownAsset
from dagmaster.model.asset import ApprovalState
from dagmaster.schemas.assets import ServiceReply
from dagmaster.store.asset_versions import get_version_row
from dagmaster.store.assets import find_asset
from dagmaster.web.access import EVERYBODY
from dagmaster.web.assets import audience_of
from dagmaster.web.errors import documented
from dagmaster.web.services import Conn, Given

router = APIRouter(tags=["assets"])

SERVED: Any = {"responses": documented(404), "dependencies": [EVERYBODY]}
Version = Annotated[str, Query(max_length=20, description="`latest` (the highest approved ordinal) or an ordinal.")]


async def resolve_service(
    asset_id: str,
    request: Request,
    services: Given,
    conn: Conn,
    version: Version = "latest",
    preview: Annotated[bool, Query(description="Also a version that is not approved; for reviewers.")] = False,
) -> ServiceReply:
    """Find the data of a version. Outside, only approved versions of public assets exist."""
    ordinal = parse_version(version)
    asset = await find_asset(conn, asset_id)
    audience = await audience_of(request, services, asset["platform_id"] if asset is not None else None)
    if preview and audience is not Audience.REVIEWERS:
        raise Forbidden("a preview is for reviewers; it takes a key of role reviewer, operator or admin")
    if audience is Audience.REVIEWERS and not preview:
        audience = Audience.INTERNAL
    if asset is None:
        raise UnknownAsset(f"there is no asset {asset_id!r}")
    check_asset(asset, audience)
    row = await get_version_row(conn, asset_id, select_ordinal(asset, ordinal, audience))
    check_version(row, is_preview=preview)
    is_public = audience is Audience.PUBLIC
    return ServiceReply.model_validate(
        {
            **row,
            "data_type": asset["data_type"],
            "clearance_state": asset["clearance_state"],
            "is_preview": row["approval_state"] != ApprovalState.APPROVED,
            "blob_path": (row["external_blob_path"] if is_public else None) or row["blob_path"],
        }
    )


for path, name in (
    ("/tiles/{asset_id}", "tiles"),
    ("/assets/{asset_id}/service", "asset_service"),
    ("/api/v1/assets/{asset_id}/service", "get_asset_service"),
):
    router.add_api_route(path, resolve_service, name=name, **SERVED)
