"""The database's own health: dead rows in the hot tables, and the version of the schema."""

from dagmaster.errors import SchemaMissing
from dagmaster.store.connect import Connection
from dagmaster.store.migrate import head
from dagmaster.store.statements import run


async def vacuum_hot_tables(conn: Connection, *, dead_rows: int) -> list[str]:
    """Autovacuum looks once a minute; at thousands of tasks a second that is too late."""
    cursor = await run(conn, "dead_rows", {"threshold": dead_rows})
    tables = [row["relname"] for row in await cursor.fetchall()]
    for table in tables:
        await run(conn, f"vacuum_{table}")
    return tables


async def check_schema(conn: Connection) -> None:
    """Raises unless the schema is the one this program was made for."""
    row = await (await run(conn, "schema_revision")).fetchone()
    if row is None or not row["is_there"]:
        raise SchemaMissing("the database has no dagmaster tables; run `dagmaster migrate`")
    found = await (await run(conn, "schema_version")).fetchone()
    version = found["version_num"] if found else None
    if version != head():
        raise SchemaMissing(
            f"the database is at schema {version}, this program needs {head()}; run `dagmaster migrate`"
        )
