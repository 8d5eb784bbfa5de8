"""Keep the hot tables small."""

from collections.abc import Iterable

from dagmaster.store.connect import Connection
from dagmaster.store.statements import fetch, run


async def bloated_tables(conn: Connection, *, dead_rows: int) -> list[str]:
    """The hot tables with more dead rows than this."""
    return [row["relname"] for row in await fetch(conn, "dead_rows", {"threshold": dead_rows})]


async def vacuum_tables(conn: Connection, tables: Iterable[str]) -> None:
    """Autovacuum runs once a minute; at thousands of tasks per second that is too late."""
    for table in tables:
        await run(conn, f"vacuum_{table}")
