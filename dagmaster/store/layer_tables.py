"""The tables of vector layers, and their use by versions and jobs."""

from collections.abc import Sequence
from dataclasses import dataclass

from dagmaster.store.connect import Connection
from dagmaster.store.statements import fetch


@dataclass(frozen=True, slots=True)
class OwnedTable:
    """A table by its qualified name, with the job that created it and the version it belongs to."""

    table_name: str
    job_id: int
    asset_id: str | None = None
    version_ordinal: int | None = None


async def find_unused_tables(conn: Connection, tables: Sequence[OwnedTable]) -> list[str]:
    """The tables that no version uses and no job writes to or can continue with."""
    values = {
        "table_names": [table.table_name for table in tables],
        "job_ids": [table.job_id for table in tables],
        "asset_ids": [table.asset_id for table in tables],
        "ordinals": [table.version_ordinal for table in tables],
    }
    return [row["table_name"] for row in await fetch(conn, "find_unused_tables", values)]


async def drop_tables_of_version(conn: Connection, asset_id: str, ordinal: int) -> list[str]:
    """Drop the tables that jobs created for the version, and return their names. Other tables stay."""
    async with conn.transaction():
        rows = await fetch(conn, "list_tables_of_version", {"asset_id": asset_id, "version_ordinal": ordinal})
        for row in rows:
            await conn.execute(row["command"].encode())
    return [row["table_name"] for row in rows]
