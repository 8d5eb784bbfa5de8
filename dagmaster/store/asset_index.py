"""Recompute the columns of assets that are derived from their versions."""

from dagmaster.store.connect import Connection
from dagmaster.store.statements import fetch


async def correct_latest_versions(conn: Connection) -> int:
    """Correct wrong latest approved ordinals, and return their number. Needs a transaction.

    Two statements: the second sees decisions that were committed while the first waited for a lock.
    """
    asset_ids = [row["asset_id"] for row in await fetch(conn, "lock_wrong_assets")]
    return len(await fetch(conn, "correct_latest_versions", {"asset_ids": asset_ids}))
