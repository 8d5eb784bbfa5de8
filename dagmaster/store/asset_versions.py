"""The versions of assets."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, TypedDict

from dagmaster.errors import UnknownVersion
from dagmaster.ids import JobId
from dagmaster.model.asset import ApprovalState, AssetVersion, ProcessingStatus
from dagmaster.store.connect import Connection, encode_json, required
from dagmaster.store.statements import fetch, fetch_as, fetch_one, fetch_one_as


class VersionRow(TypedDict):
    asset_id: str
    version_ordinal: int
    version_label: str | None
    platform_refs: dict[str, Any]
    approval_state: str
    approval_by: str | None
    approval_at: datetime | None
    approval_reason: str | None
    processing_status: str
    processing_started_at: datetime | None
    processing_completed_at: datetime | None
    processing_error: str | None
    current_job_id: JobId | None
    revision: int
    blob_path: str | None
    table_name: str | None
    stac_item_id: str | None
    stac_collection_id: str | None
    content_hash: str | None
    bbox: list[float] | None
    export_job_id: JobId | None
    external_blob_path: str | None
    adf_run_id: str | None
    exported_at: datetime | None
    export_error: str | None
    submitted_by: str
    deleted_at: datetime | None
    created_at: datetime
    updated_at: datetime
    version: int


class UnresolvedRow(TypedDict):
    asset_id: str
    version_ordinal: int
    version_label: str | None
    approval_state: str
    processing_status: str
    updated_at: datetime


class ReviewRow(TypedDict):
    """A version in review, with facts about its asset."""

    asset_id: str
    version_ordinal: int
    version_label: str | None
    platform_refs: dict[str, Any]
    processing_status: str
    processing_error: str | None
    current_job_id: JobId | None
    revision: int
    submitted_by: str
    created_at: datetime
    platform_id: str
    data_type: str
    clearance_state: str
    latest_approved_version_ordinal: int | None


async def list_versions(
    conn: Connection, asset_id: str, *, include_deleted: bool = False, limit: int, offset: int = 0
) -> list[VersionRow]:
    """The latest first."""
    values = {
        "asset_id": asset_id,
        "version_ordinal": None,
        "include_deleted": include_deleted,
        "limit": limit,
        "offset": offset,
    }
    return await fetch_as(conn, VersionRow, "list_versions", values)


async def get_version_row(conn: Connection, asset_id: str, ordinal: int) -> VersionRow:
    """Includes deleted versions."""
    values = {"asset_id": asset_id, "version_ordinal": ordinal, "include_deleted": True, "limit": 1, "offset": 0}
    row = await fetch_one_as(conn, VersionRow, "list_versions", values)
    return required(row, UnknownVersion(f"asset {asset_id!r} has no version {ordinal}"))


async def unresolved_versions(conn: Connection, asset_ids: Sequence[str]) -> dict[str, UnresolvedRow]:
    """By asset: the version that is in review or was rejected."""
    rows = await fetch_as(conn, UnresolvedRow, "list_unresolved_versions", {"asset_ids": list(asset_ids)})
    return {row["asset_id"]: row for row in rows}


async def list_review_queue(
    conn: Connection, *, platform_id: str | None = None, is_reviewable: bool = False, limit: int, offset: int = 0
) -> list[ReviewRow]:
    """The versions in review, oldest first; `is_reviewable`: only processed ones."""
    values = {"platform_id": platform_id, "is_reviewable": is_reviewable, "limit": limit, "offset": offset}
    return await fetch_as(conn, ReviewRow, "list_review_queue", values)


async def find_version(conn: Connection, asset_id: str, ordinal: int | None) -> AssetVersion | None:
    """By ordinal; without one, the unresolved version."""
    row = await fetch_one(conn, "find_version", {"asset_id": asset_id, "version_ordinal": ordinal})
    if row is None:
        return None
    states = {
        "approval_state": ApprovalState(row["approval_state"]),
        "processing_status": ProcessingStatus(row["processing_status"]),
    }
    return AssetVersion(**row | states)


async def job_ids_of_asset(conn: Connection, asset_id: str) -> list[JobId]:
    """The jobs that process or export its versions."""
    return [row["job_id"] for row in await fetch(conn, "jobs_of_asset", {"asset_id": asset_id})]


async def add_version(
    conn: Connection, *, asset_id: str, ordinal: int, label: str | None, refs: Mapping[str, str], submitted_by: str
) -> bool:
    """False while another version of the asset is unresolved."""
    values = {
        "asset_id": asset_id,
        "version_ordinal": ordinal,
        "version_label": label,
        "platform_refs": encode_json(dict(refs)),
        "submitted_by": submitted_by,
    }
    return bool(await fetch(conn, "add_version", values))
