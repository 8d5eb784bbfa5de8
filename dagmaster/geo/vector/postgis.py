"""Load the chunks of a layer into a PostGIS table, each in one idempotent transaction; the owners of tables."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pgpq import ArrowToPostgresBinaryEncoder
from psycopg import Connection
from psycopg.sql import SQL, Composable, Identifier, Literal
from pydantic import BaseModel

from dagmaster.errors import Invalid
from dagmaster.geo.vector.cleaner import BBOX, GEOMETRY
from dagmaster.geo.vector.geoparquet import attributes_of
from dagmaster.geo.vector.sorted_features import Chunk

SCHEMA: Final = "geo"
FEATURE_ID: Final = "feature_id"
SRID: Final = 4326
BATCH_ROWS: Final = 8192
MAX_NAME: Final = 63
_OWNER_KEY: Final = "dagmaster"
_NAME: Final = re.compile(r"[a-z_][a-z0-9_]*")
_TYPES: Final = {
    pa.bool_(): "boolean",
    pa.int32(): "integer",
    pa.int64(): "bigint",
    pa.float32(): "real",
    pa.float64(): "double precision",
    pa.string(): "text",
    pa.binary(): "bytea",
    pa.date32(): "date",
    pa.time64("us"): "time",
    pa.timestamp("us"): "timestamp",
    pa.timestamp("us", tz="UTC"): "timestamptz",
}


@dataclass(frozen=True, slots=True)
class Table:
    """A table in the schema `geo`."""

    name: str

    def __post_init__(self) -> None:
        if len(self.name) > MAX_NAME or not _NAME.fullmatch(self.name):
            raise Invalid(
                f"table: {self.name[:80]!r} must be 1 to {MAX_NAME} lowercase letters, digits and underscores, "
                "and must not begin with a digit"
            )

    @property
    def qualified(self) -> str:
        return f"{SCHEMA}.{self.name}"

    @property
    def identifier(self) -> Identifier:
        return Identifier(SCHEMA, self.name)

    @classmethod
    def parse(cls, qualified: str) -> "Table":
        schema, _, name = qualified.partition(".")
        if schema != SCHEMA:
            raise Invalid(f"table_name: {qualified[:80]!r} is not in the schema {SCHEMA}")
        return cls(name)


def table_for(label: str, job_id: int) -> Table:
    """One table per job: a version that is processed again keeps its table until the job completes."""
    suffix = f"_{job_id}"
    slug = re.sub(r"[^a-z0-9]+", "_", label.lower()).strip("_")
    return Table(f"v_{slug}"[: MAX_NAME - len(suffix)] + suffix)


def find_postgis(conn: Connection[Any]) -> str | None:
    """The schema of the extension; None if the database does not have it."""
    row = conn.execute(
        "SELECT n.nspname FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace WHERE e.extname = 'postgis'"
    ).fetchone()
    return str(row[0]) if row else None


def create_table(
    conn: Connection[Any], table: Table, postgis: str, parquet: Path, geometry_types: Sequence[str]
) -> bool:
    """Create the table with the columns of the file. False if it exists; then it is not changed."""
    schema = pq.read_schema(parquet)
    kind = geometry_types[0] if len(geometry_types) == 1 else "Geometry"
    columns: list[Composable] = [
        SQL("{} {}").format(Identifier(field.name), SQL(_TYPES[field.type])) for field in attributes_of(schema)
    ]
    geometry = SQL("{} {}.geometry({}, {}) NOT NULL").format(
        Identifier(GEOMETRY), Identifier(postgis), SQL(_checked_kind(kind)), Literal(SRID)
    )
    key = SQL("{} bigint PRIMARY KEY").format(Identifier(FEATURE_ID))
    # Two jobs that both find no schema would both create it.
    conn.execute("SELECT pg_advisory_xact_lock(hashtextextended('dagmaster geo', 0))")
    conn.execute(SQL("CREATE SCHEMA IF NOT EXISTS {}").format(Identifier(SCHEMA)))
    if conn.execute("SELECT to_regclass(%s)", [table.qualified]).fetchone() != (None,):
        return False
    conn.execute(SQL("CREATE TABLE {} ({})").format(table.identifier, SQL(", ").join([key, *columns, geometry])))
    return True


def _checked_kind(kind: str) -> Any:
    assert kind.isalpha()
    return kind


def load_chunk(conn: Connection[Any], table: Table, parquet: Path, chunk: Chunk) -> int:
    """Replace the rows of this chunk by those of the file; returns the number of rows."""
    with pq.ParquetFile(parquet) as file:
        rows = file.read_row_group(chunk.number).drop_columns([BBOX])
    if rows.num_rows != chunk.rows:
        raise Invalid(f"chunk {chunk.number} has {rows.num_rows} rows in the file, not {chunk.rows}")
    numbers = pa.array(np.arange(chunk.first_row, chunk.first_row + chunk.rows, dtype=np.int64))
    rows = rows.add_column(0, FEATURE_ID, numbers).replace_schema_metadata(None)
    # The same task may run twice concurrently.
    conn.execute(
        "SELECT pg_advisory_xact_lock(hashtextextended(%s, %s))", [f"dagmaster {table.qualified}", chunk.number]
    )
    conn.execute(
        SQL("DELETE FROM {} WHERE {key} >= %s AND {key} < %s").format(table.identifier, key=Identifier(FEATURE_ID)),
        [chunk.first_row, chunk.first_row + chunk.rows],
    )
    _copy(conn, table, rows)
    return chunk.rows


def _copy(conn: Connection[Any], table: Table, rows: Any) -> None:
    encoder = ArrowToPostgresBinaryEncoder(rows.schema)
    columns = SQL(", ").join(map(Identifier, rows.column_names))
    statement = SQL("COPY {} ({}) FROM STDIN (FORMAT binary)").format(table.identifier, columns)
    with conn.cursor() as cursor, cursor.copy(statement) as copy:
        copy.write(encoder.write_header())
        for batch in rows.to_batches(max_chunksize=BATCH_ROWS):
            copy.write(encoder.write_batch(batch))
        copy.write(encoder.finish())


def index_table(conn: Connection[Any], table: Table, rows: int) -> None:
    """Call it after the load. Raises Invalid if the table does not have this many rows."""
    counted = conn.execute(SQL("SELECT count(*) FROM {}").format(table.identifier)).fetchone()
    if counted is None or counted[0] != rows:
        raise Invalid(f"{table.qualified} has {counted and counted[0]} rows, not {rows}: load all chunks first")
    name = f"gist_{sha256(table.name.encode()).hexdigest()[:16]}"
    conn.execute(
        SQL("CREATE INDEX IF NOT EXISTS {} ON {} USING gist ({})").format(
            Identifier(name), table.identifier, Identifier(GEOMETRY)
        )
    )
    conn.execute(SQL("ANALYZE {}").format(table.identifier))


class TableOwner(BaseModel, frozen=True):
    """The job that created a table, and its version. `is_loaded` when all rows are there.

    Stored in the comment on the table, so that it is dropped with it.
    """

    job_id: int
    asset_id: str | None = None
    version_ordinal: int | None = None
    is_loaded: bool = False


def set_owner(conn: Connection[Any], table: Table, owner: TableOwner) -> None:
    comment = json.dumps({_OWNER_KEY: owner.model_dump()})
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
    owners = {name: _parse_owner(comment) for name, comment in rows}
    return {Table(name): owner for name, owner in owners.items() if owner is not None}


def _parse_owner(comment: str | None) -> TableOwner | None:
    try:
        return TableOwner.model_validate(json.loads(comment or "")[_OWNER_KEY])
    except (ValueError, KeyError, TypeError):
        return None


def drop_table(conn: Connection[Any], table: Table) -> None:
    """Fails if objects of others depend on the table."""
    conn.execute(SQL("DROP TABLE IF EXISTS {}").format(table.identifier))
