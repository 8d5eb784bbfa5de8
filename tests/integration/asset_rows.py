"""Assets as rows, for tests that are not about how they come to be."""

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
    """With version 0: processed, and approved unless `latest` is None. `version` are columns of it."""
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
