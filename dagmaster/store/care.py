"""Keep the hot tables small."""

from dagmaster.store.connect import Connection
from dagmaster.store.statements import run


async def vacuum_hot_tables(conn: Connection, *, dead_rows: int) -> list[str]:
    """Autovacuum looks once a minute; at thousands of tasks a second that is too late."""
    cursor = await run(conn, "dead_rows", {"threshold": dead_rows})
    tables = [row["relname"] for row in await cursor.fetchall()]
    for table in tables:
        await run(conn, f"vacuum_{table}")
    return tables
