"""Assets as rows, for tests that do not submit them."""

import json
from typing import Any

from fleet import rows


async def add_asset(
    dsn: str,
    asset_id: str,
    *,
    data_type: str = "vector",
    clearance: str = "ouo",
    platform_id: str = "ddh",
    latest: int | None = 0,
    **version: Any,
) -> str:
    """Add version 0, processed, and approved unless `latest` is None. `version` overrides its columns."""
    await rows(
        dsn,
        """INSERT INTO dagapp.geospatial_assets (asset_id, platform_id, platform_refs, data_type, clearance_state,
               latest_approved_version_ordinal, next_ordinal)
           VALUES (%s, %s, jsonb_build_object('dataset_id', %s::text), %s, %s, %s, 0)""",
        *(asset_id, platform_id, asset_id, data_type, clearance, latest),
    )
    await add_version(dsn, asset_id, 0, is_approved=latest is not None, **version)
    return asset_id


async def add_version(dsn: str, asset_id: str, ordinal: int, *, is_approved: bool = True, **columns: Any) -> None:
    columns = {"table_name": f"geo.{asset_id}" if "table_name" not in columns else None, **columns}
    names = ", ".join(columns)
    await rows(
        dsn,
        f"""INSERT INTO dagapp.asset_versions (asset_id, version_ordinal, approval_state, processing_status, {names})
            VALUES (%s, %s, %s, 'completed', {", ".join(["%s"] * len(columns))})""",
        *(asset_id, ordinal, "approved" if is_approved else "pending_review", *columns.values()),
    )
    await rows(dsn, "UPDATE dagapp.geospatial_assets SET next_ordinal = %s WHERE asset_id = %s", ordinal + 1, asset_id)


async def add_item(dsn: str, asset_id: str, clearance: str, collection_id: str = "c") -> None:
    """Add the catalogue entry of an approved version."""
    await add_asset(dsn, asset_id, clearance=clearance)
    item = {
        "type": "Feature",
        "stac_version": "1.1.0",
        "geometry": {"type": "Point", "coordinates": [8.5, 47.4]},
        "bbox": [8.5, 47.4, 8.5, 47.4],
        "properties": {"datetime": "2026-05-01T00:00:00Z", "platform:dataset_id": asset_id},
        "assets": {"data": {"href": "silver/secret-place.tif"}},
    }
    documents = {
        "stac_collection": {"type": "Collection", "id": collection_id, "description": "d", "license": "other"},
        "stac_item": {**item, "id": f"{asset_id}-0", "collection": collection_id},
    }
    await rows(dsn, "SELECT dagapp.store_stac_documents(%s::jsonb, %s, 0)", json.dumps(documents), asset_id)
