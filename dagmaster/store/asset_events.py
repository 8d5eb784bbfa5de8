"""The history of assets."""

from datetime import datetime
from typing import Any, TypedDict

from dagmaster.ids import JobId
from dagmaster.store.connect import Connection
from dagmaster.store.statements import fetch, fetch_as


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
