"""The location of the data of an asset, by approval, clearance and exposure."""

from typing import Any

from fastapi import APIRouter

from dagmaster.schemas.assets import ServiceReply
from dagmaster.web.access import EVERYBODY
from dagmaster.web.errors import documented
from dagmaster.web.served_versions import Served

router = APIRouter(tags=["assets"])

SERVED: Any = {"responses": documented(404), "dependencies": [EVERYBODY]}


async def resolve_service(served: Served) -> ServiceReply:
    """Find the data of a version. The public sees only approved versions of public assets."""
    return ServiceReply.model_validate(
        {
            **served.row,
            "data_type": served.asset["data_type"],
            "clearance_state": served.asset["clearance_state"],
            "is_preview": served.is_preview,
            "blob_path": served.blob_path,
        }
    )


for path, name in (
    ("/tiles/{asset_id}", "tiles"),
    ("/assets/{asset_id}/service", "asset_service"),
    ("/api/v1/assets/{asset_id}/service", "get_asset_service"),
):
    router.add_api_route(path, resolve_service, name=name, **SERVED)
