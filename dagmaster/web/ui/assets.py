"""The list of assets: find them by platform, reference and state."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from shlex import quote
from typing import Annotated, Any, Final

import orjson
from fastapi import APIRouter, Depends, Query
from fastapi.responses import HTMLResponse

from dagmaster.model.asset import ApprovalState, AssetFilter, ClearanceState, DataType, ProcessingStatus
from dagmaster.store.asset_versions import UnresolvedRow, unresolved_versions
from dagmaster.store.assets import AssetRow, list_assets
from dagmaster.store.platforms import list_platforms
from dagmaster.web.access import ASSET_VIEWERS
from dagmaster.web.assets import may_see_deleted, platform_of
from dagmaster.web.services import Conn
from dagmaster.web.ui.pages import Page, Shown, paged
from dagmaster.web.ui.submit import server_of

router = APIRouter(prefix="/ui", include_in_schema=False)

PAGE_SIZE: Final = 50
_REF_NAME: Final = re.compile(r"(?:^|[\s,]+)([\w.-]+)=")

Row = Mapping[str, Any]
Refs = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class AssetQuery:
    """The filters of the list, from the URL. Unknown states are ignored."""

    text: str
    platform: str
    clearance: str
    approval: str
    processing: str
    deleted: bool

    @property
    def is_filtered(self) -> bool:
        return bool(self.text or self.platform or self.clearance or self.approval or self.processing or self.deleted)


async def asset_query(
    text: Annotated[str, Query(max_length=400)] = "",
    platform: Annotated[str, Query(max_length=64)] = "",
    clearance: str = "",
    approval: str = "",
    processing: str = "",
    deleted: bool = False,
) -> AssetQuery:
    return AssetQuery(
        text.strip(),
        platform.strip(),
        _known(clearance, ClearanceState),
        _known(approval, ApprovalState),
        _known(processing, ProcessingStatus),
        deleted,
    )


def _known(name: str, states: type[StrEnum]) -> str:
    return name if name in set(states) else ""


@router.get("/assets", dependencies=[ASSET_VIEWERS])
async def show_assets(
    page: Shown,
    conn: Conn,
    query: Annotated[AssetQuery, Depends(asset_query)],
    offset: Annotated[int, Query(ge=0)] = 0,
) -> HTMLResponse:
    own = platform_of(page.caller)
    refs, text = parse_references(query.text)
    where = AssetFilter(
        platform_id=own or query.platform or None,
        refs=refs,
        text=text,
        clearance_state=query.clearance or None,
        approval_state=query.approval or None,
        processing_status=query.processing or None,
        include_deleted=may_see_deleted(page.caller, query.deleted),
    )
    rows = await list_assets(conn, where, limit=PAGE_SIZE + 1, offset=offset)
    platforms = await list_platforms(conn)
    unresolved = await unresolved_versions(conn, [row["asset_id"] for row in rows])
    names = required_refs(platforms)
    return page.render(
        "assets.html",
        {
            "assets": [asset_line(row, unresolved.get(row["asset_id"]), names) for row in rows[:PAGE_SIZE]],
            **paged(rows, PAGE_SIZE, offset),
            "query": query,
            "own": own,
            "platform_ids": [platform["platform_id"] for platform in platforms],
            "clearances": list(ClearanceState),
            "approvals": list(ApprovalState),
            "processings": list(ProcessingStatus),
            "command": submit_command(page, platforms, own),
        },
    )


def parse_references(text: str) -> tuple[dict[str, str], str | None]:
    """`dataset_id=7 resource_id=b` as references; everything else as the value of some reference."""
    before, *parts = _REF_NAME.split(text)
    if before.strip() or not parts:
        return {}, text or None
    refs = dict(zip(parts[::2], (value.strip() for value in parts[1::2]), strict=True))
    return {name: value for name, value in refs.items() if value}, None


def required_refs(platforms: Iterable[Row]) -> dict[str, Sequence[str]]:
    return {platform["platform_id"]: platform["required_refs"] for platform in platforms}


def ordered_refs(refs: Mapping[str, Any], names: Sequence[str] = ()) -> Refs:
    """The references that identify the asset first, in the order of its platform."""
    return tuple((name, str(refs[name])) for name in dict.fromkeys((*names, *sorted(refs))) if name in refs)


def asset_line(row: AssetRow, unresolved: UnresolvedRow | None, names: Mapping[str, Sequence[str]]) -> Row:
    """An asset in the list. `unresolved` is the version that waits for review or was rejected."""
    return {
        **row,
        "refs": ordered_refs(row["platform_refs"], names.get(row["platform_id"], ())),
        "latest_approved": row["latest_approved_version_ordinal"],
        "unresolved": unresolved,
        "updated_at": max(row["updated_at"], unresolved["updated_at"]) if unresolved else row["updated_at"],
        "is_deleted": row["deleted_at"] is not None,
    }


def submit_command(page: Page, platforms: Sequence[Row], own: str | None) -> str:
    """The curl command that submits a first asset."""
    usable = [platform for platform in platforms if platform["is_active"] and own in (None, platform["platform_id"])]
    platform = usable[0] if usable else {"platform_id": "PLATFORM", "required_refs": ["REFERENCE"]}
    body = {
        "workflow_id": "WORKFLOW",
        "platform_id": platform["platform_id"],
        "platform_refs": dict.fromkeys(platform["required_refs"], "VALUE"),
        "data_type": DataType.RASTER,
        "input_params": {},
    }
    headers = ["Content-Type: application/json", *(["Authorization: Bearer KEY"] if page.is_signed_in else [])]
    return " ".join(
        [
            f"curl {quote(server_of(page) + '/api/v1/submit')}",
            *(f"-H {quote(header)}" for header in headers),
            f"-d {quote(orjson.dumps(body).decode())}",
        ]
    )
