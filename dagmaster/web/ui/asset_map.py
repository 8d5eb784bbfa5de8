"""The map of an asset: its versions drawn from their data, and two of them side by side."""

from dataclasses import dataclass
from typing import Annotated, Final

from fastapi import APIRouter, Depends, Query
from fastapi.responses import HTMLResponse

from dagmaster.assets.exposure import CLEARANCES, Audience
from dagmaster.model.asset import ApprovalState, ProcessingStatus
from dagmaster.store.asset_versions import VersionRow, list_versions
from dagmaster.store.assets import AssetRow
from dagmaster.store.platforms import find_platform
from dagmaster.web.access import ASSET_VIEWERS
from dagmaster.web.services import Conn
from dagmaster.web.ui.asset import TABS, asset_shown
from dagmaster.web.ui.assets import ordered_refs
from dagmaster.web.ui.pages import Shown

router = APIRouter(prefix="/ui", include_in_schema=False)

MAX_VERSIONS: Final = 100
# A few of rio-tiler's colour maps that are easy to distinguish, also with colour blindness.
COLOURS: Final = {
    "viridis": "Viridis",
    "cividis": "Cividis",
    "magma": "Magma",
    "terrain": "Terrain",
    "ylgnbu": "Yellow to blue",
    "rdylgn": "Red to green",
    "": "Grey",
}

Ordinal = Annotated[int | None, Query(ge=0)]


@dataclass(frozen=True, slots=True)
class DrawnVersion:
    """`query` selects the version in the URLs of its tiles."""

    ordinal: int
    title: str
    query: str
    bbox: list[float] | None


@router.get("/assets/{asset_id}/map", dependencies=[ASSET_VIEWERS])
async def show_asset_map(
    page: Shown,
    asset: Annotated[AssetRow, Depends(asset_shown)],
    conn: Conn,
    version: Ordinal = None,
    compare: Ordinal = None,
    attribute: Annotated[str, Query(max_length=200)] = "",
) -> HTMLResponse:
    rows = await list_versions(conn, asset["asset_id"], limit=MAX_VERSIONS)
    versions = drawn_versions(asset, rows, may_review=page.may_review)
    platform = await find_platform(conn, asset["platform_id"])
    ordinals = [drawn.ordinal for drawn in versions]
    return page.render(
        "asset_map.html",
        {
            "asset": asset,
            "refs": ordered_refs(asset["platform_refs"], platform.required_refs if platform else ()),
            "versions": versions,
            "ordinal": version if version in ordinals else next(iter(ordinals), None),
            "compare": compare if compare in ordinals else None,
            "attribute": attribute,
            "colours": COLOURS,
            "tabs": TABS,
            "tab": "map",
        },
    )


def drawn_versions(asset: AssetRow, rows: list[VersionRow], *, may_review: bool) -> list[DrawnVersion]:
    """The versions whose tiles the caller may see; reviewers also see previews of versions that are not approved."""
    is_cleared = asset["clearance_state"] in CLEARANCES[Audience.INTERNAL]
    if asset["deleted_at"] is not None or not (may_review or is_cleared):
        return []
    return [_drawn(row, may_review) for row in rows if _is_drawn(row, may_review)]


def _is_drawn(row: VersionRow, may_review: bool) -> bool:
    is_approved = row["approval_state"] == ApprovalState.APPROVED
    is_processed = row["processing_status"] == ProcessingStatus.COMPLETED
    return row["blob_path"] is not None and (is_approved or (may_review and is_processed))


def _drawn(row: VersionRow, may_review: bool) -> DrawnVersion:
    ordinal, label = row["version_ordinal"], row["version_label"]
    waits = "" if row["approval_state"] == ApprovalState.APPROVED else ", not approved"
    title = f"Version {ordinal}{f' · {label}' if label else ''}{waits}"
    return DrawnVersion(ordinal, title, f"version={ordinal}{'&preview=true' if may_review else ''}", row["bbox"])
