"""What assets have been told of their versions, computed again."""

from dagmaster.store.connect import Connection
from dagmaster.store.statements import fetch


async def correct_latest_versions(conn: Connection) -> int:
    """How many assets had another latest approved ordinal than their versions say. Needs a transaction.

    Two statements: the second one sees what was decided while the first one waited for a lock.
    """
    asset_ids = [row["asset_id"] for row in await fetch(conn, "lock_wrong_assets")]
    return len(await fetch(conn, "correct_latest_versions", {"asset_ids": asset_ids}))
