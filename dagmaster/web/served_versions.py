"""The versions of assets whose data a caller may read: resolved by approval, clearance and exposure."""

from dataclasses import dataclass
from hashlib import sha256
from typing import Annotated, Final

from fastapi import Depends, Query, Request

from dagmaster.assets.exposure import Audience, check_asset, check_version, parse_version, select_ordinal
from dagmaster.errors import Forbidden, UnknownAsset
from dagmaster.model.asset import ApprovalState, ClearanceState
from dagmaster.store.asset_versions import VersionRow, get_version_row
from dagmaster.store.assets import AssetRow, find_asset
from dagmaster.web.assets import audience_of, caller_or_public
from dagmaster.web.services import ServicesDep

# Caches must revalidate, so that withdrawn data is not shown: they get 304 while the data is unchanged.
ASK_AGAIN: Final = "private, no-cache"
FOR_EVERYBODY: Final = "public, max-age=300"
VARY: Final = "Accept, Authorization, Cookie, X-API-Key"

VersionName = Annotated[str, Query(max_length=20, description="`latest` (the highest approved ordinal) or an ordinal.")]
Preview = Annotated[bool, Query(description="Also serve versions that are not approved; for reviewers.")]


@dataclass(frozen=True, slots=True)
class ServedVersion:
    """A version that the caller may see, and the audience."""

    asset: AssetRow
    row: VersionRow
    audience: Audience

    @property
    def is_preview(self) -> bool:
        return self.row["approval_state"] != ApprovalState.APPROVED

    @property
    def blob_path(self) -> str | None:
        """For the public, the exported copy if there is one."""
        is_public = self.audience is Audience.PUBLIC
        return (self.row["external_blob_path"] if is_public else None) or self.row["blob_path"]

    @property
    def cache_control(self) -> str:
        is_public = self.asset["clearance_state"] == ClearanceState.PUBLIC and not self.is_preview
        return FOR_EVERYBODY if is_public else ASK_AGAIN

    def etag(self, *parts: str) -> str:
        """The ETag of a response made from this version; `parts` identify the response."""
        row = self.row
        identity = (row["asset_id"], row["version_ordinal"], row["revision"], self.blob_path, row["content_hash"])
        return f'"{sha256(repr((identity, parts)).encode()).hexdigest()[:32]}"'


async def find_served_version(
    asset_id: str, request: Request, services: ServicesDep, version: VersionName = "latest", preview: Preview = False
) -> ServedVersion:
    """Returns the connection at once, because rendering the data may take long."""
    ordinal = parse_version(version)
    caller = await caller_or_public(request, services)
    async with services.pool.connection() as conn:
        asset = await find_asset(conn, asset_id)
        audience = audience_of(caller, asset["platform_id"] if asset is not None else None)
        if preview and audience is not Audience.REVIEWERS:
            raise Forbidden("a preview needs a key with the role reviewer, operator or admin")
        if audience is Audience.REVIEWERS and not preview:
            audience = Audience.INTERNAL
        if asset is None:
            raise UnknownAsset(f"there is no asset {asset_id!r}")
        check_asset(asset, audience)
        row = await get_version_row(conn, asset_id, select_ordinal(asset, ordinal, audience))
    check_version(row, is_preview=preview)
    return ServedVersion(asset, row, audience)


Served = Annotated[ServedVersion, Depends(find_served_version)]
