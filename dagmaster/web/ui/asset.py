"""The page of an asset: clearance, versions with their outputs, map, history, and the possible decisions."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Query
from fastapi.responses import HTMLResponse

from dagmaster.model.asset import (
    APPROVE,
    CLEAR,
    EXPORT_OUTPUTS,
    MAKE_PUBLIC,
    REJECT,
    REPROCESS,
    VERSION_OUTPUTS,
    ApprovalState,
    ClearanceState,
    ExposureMode,
    ProcessingStatus,
)
from dagmaster.model.redact import redact
from dagmaster.model.shapes import Shapes, shapes_of
from dagmaster.store.asset_versions import VersionRow, list_versions
from dagmaster.store.assets import AssetEventRow, AssetRow, list_asset_events
from dagmaster.store.platforms import find_platform
from dagmaster.web.access import ASSET_VIEWERS
from dagmaster.web.assets import may_see_deleted, visible_asset
from dagmaster.web.services import Conn
from dagmaster.web.ui.assets import Refs, ordered_refs
from dagmaster.web.ui.pages import Page, Shown, paged
from dagmaster.web.ui.timeline import ICONS

router = APIRouter(prefix="/ui", include_in_schema=False)

VERSIONS_PER_PAGE: Final = 20
EVENTS_PER_PAGE: Final = 100
# Label, icon, and path after the URL of the asset.
TABS: Final = {
    "versions": ("Versions", "layers", ""),
    "history": ("History", "list", "?tab=history"),
    "map": ("Map", "map", "/map"),
}
TITLES: Final = {
    "asset_created": ("info", "Asset created"),
    "version_submitted": ("info", "Version {ordinal} submitted"),
    "version_approved": ("success", "Version {ordinal} approved"),
    "version_rejected": ("failure", "Version {ordinal} rejected"),
    "version_resubmitted": ("info", "Version {ordinal} resubmitted"),
    "version_reprocessed": ("info", "Version {ordinal} reprocessed"),
    "version_deleted": ("warning", "Version {ordinal} deleted"),
    "asset_deleted": ("warning", "Asset deleted"),
    "exposure_changed": ("info", "Exposure changed to {to}"),
    "asset_cleared": ("success", "Asset cleared for official use only"),
    "asset_made_public": ("success", "Asset made public"),
    "processing_started": ("info", "Processing of version {ordinal} started"),
    "processing_completed": ("success", "Processing of version {ordinal} completed"),
    "processing_failed": ("failure", "Processing of version {ordinal} failed"),
    "export_queued": ("info", "Export of version {ordinal} queued"),
    "export_completed": ("success", "Version {ordinal} exported"),
    "export_failed": ("failure", "Export of version {ordinal} failed"),
    "metadata_published": ("success", "Layer metadata published"),
    "metadata_unpublished": ("warning", "Layer metadata unpublished"),
    "review_requested": ("info", "Review of version {ordinal} requested"),
    "export_removed": ("warning", "Public copy of version {ordinal} removed"),
}
EXPOSURES: Final = {ExposureMode.LATEST_ONLY: "the latest version only", ExposureMode.ALL_VERSIONS: "all versions"}


class AssetAction(StrEnum):
    CLEAR = "clear"
    MAKE_PUBLIC = "make_public"
    EXPOSE = "expose"
    DELETE = "delete"


class VersionAction(StrEnum):
    APPROVE = "approve"
    REJECT = "reject"
    REPROCESS = "reprocess"
    RESUBMIT = "resubmit"
    EXPORT = "export"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class VersionView:
    """`refs` are the references of the version that do not identify the asset."""

    row: VersionRow
    refs: Refs
    outputs: Refs
    reason: str | None
    error: str | None
    export_error: str | None
    is_latest: bool
    actions: frozenset[VersionAction]


async def asset_shown(asset_id: str, page: Shown, conn: Conn) -> AssetRow:
    """Read after the beat of the page. Operators also see deleted assets."""
    return await visible_asset(asset_id, page.caller, conn, include_deleted=True)


@router.get("/assets/{asset_id}", dependencies=[ASSET_VIEWERS])
async def show_asset(
    page: Shown,
    asset: Annotated[AssetRow, Depends(asset_shown)],
    conn: Conn,
    tab: str = "versions",
    offset: Annotated[int, Query(ge=0)] = 0,
) -> HTMLResponse:
    tab = tab if tab == "history" else "versions"
    platform = await find_platform(conn, asset["platform_id"])
    values = await (_history if tab == "history" else _versions)(page, asset, conn, offset)
    return page.render(
        "asset.html",
        {
            "asset": asset,
            "refs": ordered_refs(asset["platform_refs"], platform.required_refs if platform else ()),
            "platform_name": platform.display_name if platform else asset["platform_id"],
            "actions": asset_actions(asset) if page.may_review else frozenset(),
            "exposures": EXPOSURES,
            "tabs": TABS,
            "tab": tab,
            **values,
        },
    )


async def _versions(page: Page, asset: AssetRow, conn: Conn, offset: int) -> dict[str, Any]:
    rows = await list_versions(
        conn,
        asset["asset_id"],
        include_deleted=may_see_deleted(page.caller, True),
        limit=VERSIONS_PER_PAGE + 1,
        offset=offset,
    )
    page_rows = rows[:VERSIONS_PER_PAGE]
    return {
        "versions": [version_view(asset, row, may_review=page.may_review) for row in page_rows],
        "shapes": extents(page_rows),
        **paged(rows, VERSIONS_PER_PAGE, offset),
    }


async def _history(page: Page, asset: AssetRow, conn: Conn, offset: int) -> dict[str, Any]:
    rows = await list_asset_events(conn, asset["asset_id"], newest_first=True, limit=EVENTS_PER_PAGE + 1, offset=offset)
    return {
        "events": [event_view(row) for row in rows[:EVENTS_PER_PAGE]],
        "icons": ICONS,
        **paged(rows, EVENTS_PER_PAGE, offset),
    }


def asset_actions(asset: AssetRow) -> frozenset[AssetAction]:
    """The actions that its state allows."""
    if asset["deleted_at"] is not None:
        return frozenset()
    state = ClearanceState(asset["clearance_state"])
    actions = {AssetAction.EXPOSE, AssetAction.DELETE}
    if state in CLEAR.sources:
        actions.add(AssetAction.CLEAR)
    if state in CLEAR.sources | MAKE_PUBLIC.sources:
        actions.add(AssetAction.MAKE_PUBLIC)
    return frozenset(actions)


def version_actions(asset: AssetRow, version: VersionRow) -> frozenset[VersionAction]:
    """The actions that both states allow. A rejected version is resubmitted: reprocessing would leave it rejected."""
    if asset["deleted_at"] is not None or version["deleted_at"] is not None:
        return frozenset()
    approval = ApprovalState(version["approval_state"])
    processing = ProcessingStatus(version["processing_status"])
    is_public = asset["clearance_state"] == ClearanceState.PUBLIC
    allowed = {
        VersionAction.APPROVE: approval in APPROVE.sources and processing is ProcessingStatus.COMPLETED,
        VersionAction.REJECT: approval in REJECT.sources,
        VersionAction.REPROCESS: processing in REPROCESS.sources and approval is not ApprovalState.REJECTED,
        VersionAction.RESUBMIT: approval is ApprovalState.REJECTED,
        VersionAction.EXPORT: approval is ApprovalState.APPROVED and is_public,
        VersionAction.DELETE: True,
    }
    return frozenset(action for action, is_allowed in allowed.items() if is_allowed)


def version_view(asset: AssetRow, row: VersionRow, *, may_review: bool) -> VersionView:
    known = asset["platform_refs"]
    values: Mapping[str, Any] = {**row}
    return VersionView(
        row=row,
        refs=ordered_refs({name: value for name, value in row["platform_refs"].items() if known.get(name) != value}),
        outputs=tuple((name, values[name]) for name in (*VERSION_OUTPUTS, *EXPORT_OUTPUTS) if values[name]),
        reason=redact(row["approval_reason"]),
        error=redact(row["processing_error"]),
        export_error=redact(row["export_error"]),
        is_latest=row["version_ordinal"] == asset["latest_approved_version_ordinal"],
        actions=version_actions(asset, row) if may_review else frozenset(),
    )


def extents(rows: list[VersionRow]) -> Shapes:
    """The boxes of the versions that have one and are not deleted."""
    boxes = {f"version {row['version_ordinal']}": {"bbox": row["bbox"]} for row in rows if row["deleted_at"] is None}
    return shapes_of(boxes)


def event_view(row: AssetEventRow) -> dict[str, Any]:
    """An entry in the history."""
    tone, title = TITLES[row["event_type"]]
    to = (row["event_data"] or {}).get("to", "")
    title = title.format(ordinal=row["version_ordinal"], to=EXPOSURES.get(to, to))
    return {**row, "at": row["created_at"], "tone": tone, "title": title, "reason": redact(row["reason"])}
