"""Vector tiles from the PostGIS table of a version, for zooms that its archive does not have."""

from typing import Any, Final

from psycopg.errors import QueryCanceled, UndefinedTable
from psycopg.sql import SQL, Composed, Identifier

from dagmaster.errors import Invalid, NotFound, Unavailable
from dagmaster.geo.vector.cleaner import GEOMETRY
from dagmaster.geo.vector.postgis import FEATURE_ID, SRID, Table
from dagmaster.store.connect import Connection

LAYER: Final = "features"
MAX_ZOOM: Final = 18
MAX_FEATURES: Final = 20_000
MAX_TILE_BYTES: Final = 4 * 1024 * 1024
TIMEOUT_MS: Final = 5_000

_TILE: Final = SQL("""
    WITH place AS (SELECT ST_TileEnvelope($1, $2, $3) AS mercator), candidates AS (
        SELECT t.* FROM {table} t, place
        WHERE t.{geometry} && ST_Transform(place.mercator, {srid}) LIMIT $4
    ), tile AS (
        SELECT {columns}, ST_AsMVTGeom(ST_Transform(c.{geometry}, 3857), place.mercator) AS shape
        FROM candidates c, place
    )
    SELECT (SELECT count(*) FROM candidates) AS candidates,
        (SELECT ST_AsMVT(tile, {layer}, 4096, 'shape', {key}) FROM tile WHERE shape IS NOT NULL) AS content
""")


async def read_tile(conn: Connection, table_name: str, z: int, x: int, y: int) -> bytes:
    """Empty if there are no features. Bounded in features, bytes and time."""
    table = Table.parse(table_name)
    try:
        async with conn.transaction():
            statement = await _statement(conn, table)
            cursor = await conn.execute(statement, [z, x, y, MAX_FEATURES + 1])
            row: Any = await cursor.fetchone()
    except QueryCanceled as error:
        raise Unavailable("the tile took too long; zoom in") from error
    except UndefinedTable as error:
        raise NotFound("the table of this version no longer exists") from error
    content = bytes(row["content"] or b"")
    if row["candidates"] > MAX_FEATURES or len(content) > MAX_TILE_BYTES:
        raise Invalid(f"the tile has more than {MAX_FEATURES:,} features or {MAX_TILE_BYTES >> 20} MiB; zoom in")
    return content


async def _statement(conn: Connection, table: Table) -> Composed:
    """PostGIS functions are found in the extension's schema, which only this transaction searches."""
    cursor = await conn.execute(
        "SELECT n.nspname AS schema FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace "
        "WHERE e.extname = 'postgis'"
    )
    if (extension := await cursor.fetchone()) is None:
        raise NotFound("the database of this server does not have PostGIS")
    await conn.execute(
        "SELECT set_config('search_path', quote_ident($1), true), set_config('statement_timeout', $2, true)",
        [extension["schema"], str(TIMEOUT_MS)],
    )
    cursor = await conn.execute(
        "SELECT attname FROM pg_attribute WHERE attrelid = $1::regclass AND attnum > 0 AND NOT attisdropped",
        [table.qualified],
    )
    names = [row["attname"] for row in await cursor.fetchall() if row["attname"] != GEOMETRY]
    columns = SQL(", ").join(SQL("c.{}").format(Identifier(name)) for name in names)
    return _TILE.format(
        table=table.identifier,
        geometry=Identifier(GEOMETRY),
        srid=SRID,
        columns=columns,
        layer=LAYER,
        key=FEATURE_ID,
    )
