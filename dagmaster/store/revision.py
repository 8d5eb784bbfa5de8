"""Which version of the schema this program needs, and which one the database has."""

from pathlib import Path

from dagmaster.errors import SchemaMissing
from dagmaster.store.connect import Connection
from dagmaster.store.statements import run

MIGRATIONS = Path(__file__).parent / "migrations"
# By the files' names, not by asking Alembic: its import would double the time of a short command.
HEAD = max(path.name.partition("_")[0] for path in MIGRATIONS.glob("versions/[0-9]*.py"))


async def current_revision(conn: Connection) -> str | None:
    """None when the schema was never made."""
    row = await (await run(conn, "schema_revision")).fetchone()
    if row is None or not row["is_there"]:
        return None
    found = await (await run(conn, "schema_version")).fetchone()
    return found["version_num"] if found else None


async def check_schema(conn: Connection) -> None:
    """Raises unless the schema is the one this program was made for."""
    revision = await current_revision(conn)
    if revision is None:
        raise SchemaMissing("the database has no dagmaster tables; run `dagmaster migrate`")
    if revision != HEAD:
        raise SchemaMissing(f"the database is at schema {revision}, this program needs {HEAD}; run `dagmaster migrate`")
