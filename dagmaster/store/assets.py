"""Assets and their history: lock them for a decision, apply a change in one statement, list them."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, TypedDict

from dagmaster.errors import Conflict, UnknownAsset
from dagmaster.ids import JobId
from dagmaster.model.asset import Asset, AssetFilter, ClearanceState, DataType, ExposureMode
from dagmaster.store.connect import Connection, encode_json, required
from dagmaster.store.statements import fetch, fetch_as, fetch_one, fetch_one_as


class StaleVersion(Conflict):
    """The version has changed since it was read; retry."""


class AssetRow(TypedDict):
    asset_id: str
    platform_id: str
    platform_refs: dict[str, str]
    data_type: str
    clearance_state: str
    cleared_at: datetime | None
    cleared_by: str | None
    made_public_at: datetime | None
    made_public_by: str | None
    exposure_mode: str
    latest_approved_version_ordinal: int | None
    deleted_at: datetime | None
    created_at: datetime
    updated_at: datetime
    version: int
    unresolved_ordinal: int | None
    version_count: int


@dataclass(frozen=True, slots=True)
class AssetEvent:
    """An entry in the history of an asset."""

    event_type: str
    version_ordinal: int | None = None
    actor: str | None = None
    reason: str | None = None
    job_id: JobId | None = None
    event_data: Mapping[str, Any] | None = None


class AssetEventRow(TypedDict):
    event_id: int
    asset_id: str
    version_ordinal: int | None
    event_type: str
    actor: str | None
    reason: str | None
    job_id: JobId | None
    event_data: dict[str, Any] | None
    created_at: datetime


@dataclass(frozen=True, slots=True)
class AssetChange:
    """The writes of a decision: columns of the asset and of one version, events, and jobs to cancel."""

    asset: Mapping[str, Any] = field(default_factory=dict)
    version: Mapping[str, Any] = field(default_factory=dict)
    events: Sequence[AssetEvent] = ()
    cancelled_job_ids: Sequence[JobId] = ()
    cancel_reason: str | None = None


async def find_asset(conn: Connection, asset_id: str) -> AssetRow | None:
    return await fetch_one_as(conn, AssetRow, "show_asset", {"asset_id": asset_id})


async def get_asset(conn: Connection, asset_id: str) -> AssetRow:
    return required(await find_asset(conn, asset_id), UnknownAsset(f"there is no asset {asset_id!r}"))


async def list_assets(conn: Connection, where: AssetFilter, *, limit: int, offset: int = 0) -> list[AssetRow]:
    """The newest first."""
    values = {
        **asdict(where),
        "refs": encode_json(dict(where.refs)) if where.refs else None,
        "limit": limit,
        "offset": offset,
    }
    return await fetch_as(conn, AssetRow, "list_assets", values)


async def list_asset_events(
    conn: Connection,
    asset_id: str,
    *,
    ordinal: int | None = None,
    newest_first: bool = False,
    limit: int,
    offset: int = 0,
) -> list[AssetEventRow]:
    """The oldest first by default; of one version, or of the asset and all its versions."""
    values = {
        "asset_id": asset_id,
        "version_ordinal": ordinal,
        "newest_first": newest_first,
        "limit": limit,
        "offset": offset,
    }
    return await fetch_as(conn, AssetEventRow, "list_asset_events", values)


async def has_asset_event(conn: Connection, asset_id: str, event_type: str, job_id: JobId) -> bool:
    """Whether this job has caused an event of this type."""
    values = {"asset_id": asset_id, "event_type": event_type, "job_id": job_id}
    return bool(await fetch(conn, "find_asset_event", values))


async def add_asset(
    conn: Connection, *, asset_id: str, platform_id: str, platform_refs: Mapping[str, str], data_type: DataType
) -> bool:
    """False if it exists already."""
    values = {
        "asset_id": asset_id,
        "platform_id": platform_id,
        "platform_refs": encode_json(dict(platform_refs)),
        "data_type": data_type,
    }
    return bool(await fetch(conn, "add_asset", values))


async def lock_asset(conn: Connection, asset_id: str) -> Asset:
    """Lock until the end of the caller's transaction; raises UnknownAsset."""
    unknown = UnknownAsset(f"there is no asset {asset_id!r}")
    row = required(await fetch_one(conn, "lock_asset", {"asset_id": asset_id}), unknown)
    approved = await fetch(conn, "approved_ordinals", {"asset_id": asset_id})
    states = {
        "data_type": DataType(row["data_type"]),
        "clearance_state": ClearanceState(row["clearance_state"]),
        "exposure_mode": ExposureMode(row["exposure_mode"]),
    }
    return Asset(**row | states, approved=tuple(version["version_ordinal"] for version in approved))


async def save_change(
    conn: Connection, asset: Asset, change: AssetChange, *, ordinal: int | None = None, known_version: int | None = None
) -> None:
    """Raises StaleVersion if the version has changed since it was read: a job may have moved it.

    Call it last in a transaction: it locks the version's row, and the owner of its job must not wait for that.
    """
    values = {
        "asset_id": asset.asset_id,
        "asset": encode_json(dict(change.asset)),
        "changed": encode_json(dict(change.version)),
        "version_ordinal": ordinal,
        "known_version": known_version,
        "events": encode_json([asdict(event) for event in change.events]),
        "actor": next((event.actor for event in change.events), None),
        "cancelled_job_ids": list(change.cancelled_job_ids),
        "cancel_reason": change.cancel_reason,
    }
    [row] = await fetch(conn, "save_asset_change", values)
    if ordinal is not None and row["versions"] != 1:
        raise StaleVersion


async def correct_latest_versions(conn: Connection) -> int:
    """Correct wrong latest approved ordinals, and return their number. Needs a transaction.

    Two statements: the second sees decisions that were committed while the first waited for a lock.
    """
    asset_ids = [row["asset_id"] for row in await fetch(conn, "lock_wrong_assets")]
    return len(await fetch(conn, "correct_latest_versions", {"asset_ids": asset_ids}))
