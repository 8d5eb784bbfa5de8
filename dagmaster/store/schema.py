"""The schema of the database: its revision, tables, event partitions and dead rows."""

from collections.abc import Iterable
from pathlib import Path

from dagmaster.errors import SchemaMissing
from dagmaster.store.connect import Connection, Row
from dagmaster.store.statements import fetch, fetch_one, run

MIGRATIONS = Path(__file__).parent / "migrations"
# From the file names: importing Alembic would double the time of a short command.
HEAD = max(path.name.partition("_")[0] for path in MIGRATIONS.glob("versions/[0-9]*.py"))


async def current_revision(conn: Connection) -> str | None:
    """None if the schema does not exist."""
    [row] = await fetch(conn, "schema_revision")
    version = await fetch_one(conn, "schema_version") if row["is_there"] else None
    return version["version_num"] if version else None


async def check_schema(conn: Connection) -> None:
    """Raises if the schema is not the one that this program needs."""
    revision = await current_revision(conn)
    if revision is None:
        raise SchemaMissing("the database has no dagmaster tables; run `dagmaster migrate`")
    if revision != HEAD:
        raise SchemaMissing(f"the database is at schema {revision}, this program needs {HEAD}; run `dagmaster migrate`")


async def database_name(conn: Connection) -> str:
    [row] = await fetch(conn, "database_name", {})
    return str(row["name"])


async def is_read_only(conn: Connection) -> bool:
    [row] = await fetch(conn, "is_read_only")
    return bool(row["is_read_only"])


async def list_tables(conn: Connection) -> list[Row]:
    return await fetch(conn, "view_tables", {})


async def missing_partitions(conn: Connection) -> int:
    [row] = await fetch(conn, "view_missing_partitions", {})
    return int(row["missing"])


async def bloated_tables(conn: Connection, *, dead_rows: int) -> list[str]:
    """The hot tables with more dead rows than this."""
    return [row["relname"] for row in await fetch(conn, "dead_rows", {"threshold": dead_rows})]


async def ensure_partitions(conn: Connection, days_ahead: int = 7) -> None:
    await run(conn, "ensure_event_partitions", {"days_ahead": days_ahead})


async def vacuum_tables(conn: Connection, tables: Iterable[str]) -> None:
    """Autovacuum runs once a minute; at thousands of tasks per second that is too late."""
    for table in tables:
        await run(conn, f"vacuum_{table}")


async def drop_schema(conn: Connection) -> None:
    """Destroys every job, key and event."""
    await run(conn, "drop_schema")
