"""The owners of layer tables, stored in the comment on the table, so that they are dropped with it."""

import json
from typing import Any, Final

from psycopg import Connection
from psycopg.sql import SQL, Literal
from pydantic import BaseModel, ValidationError

from dagmaster.geo.vector.postgis import SCHEMA, Table

_KEY: Final = "dagmaster"


class TableOwner(BaseModel, frozen=True):
    """The job that created a table, and its version. `is_loaded` when all rows are there."""

    job_id: int
    asset_id: str | None = None
    version_ordinal: int | None = None
    is_loaded: bool = False


def set_owner(conn: Connection[Any], table: Table, owner: TableOwner) -> None:
    comment = json.dumps({_KEY: owner.model_dump()})
    conn.execute(SQL("COMMENT ON TABLE {} IS {}").format(table.identifier, Literal(comment)))


def mark_loaded(conn: Connection[Any], table: Table) -> None:
    """No effect on a table without an owner."""
    owner = list_owners(conn).get(table)
    if owner is not None:
        set_owner(conn, table, owner.model_copy(update={"is_loaded": True}))


def list_owners(conn: Connection[Any]) -> dict[Table, TableOwner]:
    """The tables that jobs have created. Other tables of the schema are not touched."""
    rows = conn.execute(
        "SELECT c.relname, obj_description(c.oid, 'pg_class') FROM pg_class c "
        "JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relkind = 'r' ORDER BY 1",
        [SCHEMA],
    ).fetchall()
    owners = {name: _parse(comment) for name, comment in rows}
    return {Table(name): owner for name, owner in owners.items() if owner is not None}


def _parse(comment: str | None) -> TableOwner | None:
    try:
        return TableOwner.model_validate(json.loads(comment or "")[_KEY])
    except (ValueError, KeyError, TypeError, ValidationError):
        return None


def drop_table(conn: Connection[Any], table: Table) -> None:
    """Fails if objects of others depend on the table."""
    conn.execute(SQL("DROP TABLE IF EXISTS {}").format(table.identifier))
