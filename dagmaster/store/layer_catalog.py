"""The catalogue of published layers for map clients. Its rows are copies, in this database and in an external one.

The external database is publicly readable, and has the tables of the catalogue without the rest of the schema.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, Final, TypedDict

import psycopg

from dagmaster import store
from dagmaster.errors import Conflict, DatabaseUnavailable, Invalid, Unavailable, UnknownLayer
from dagmaster.model.redact import redact_text
from dagmaster.store.connect import Connection, connect, encode_json, required
from dagmaster.store.statements import fetch, fetch_as, fetch_one_as

log = logging.getLogger(__name__)

MAX_TABLE_NAME: Final = 256
# The caller of a decision waits for the write to the external database.
EXTERNAL_SECONDS: Final = 5.0
LOCK_SECONDS: Final = 3.0


class ShownLayer(TypedDict):
    """The presentation of a layer, in its metadata and in the catalogue."""

    data_type: str
    display_name: str
    description: str | None
    attribution: str | None
    keywords: list[str]
    style: dict[str, Any] | None
    legend: dict[str, Any] | None
    field_metadata: dict[str, Any] | None
    min_zoom: int
    max_zoom: int
    default_visible: bool
    sort_order: int
    thumbnail_url: str | None


class CatalogRow(ShownLayer):
    table_name: str
    source_asset_id: str
    version_ordinal: int | None
    bbox: list[float] | None
    published_at: datetime


async def list_catalog(
    conn: Connection, *, platform_id: str | None = None, limit: int, offset: int = 0
) -> list[CatalogRow]:
    """In display order."""
    values = {"table_name": None, "platform_id": platform_id, "limit": limit, "offset": offset}
    return await fetch_as(conn, CatalogRow, "list_catalog", values)


async def get_catalog_entry(conn: Connection, table_name: str, *, platform_id: str | None = None) -> CatalogRow:
    values = {"table_name": table_name, "platform_id": platform_id, "limit": 1, "offset": 0}
    row = await fetch_one_as(conn, CatalogRow, "list_catalog", values)
    return required(row, UnknownLayer(f"no published layer has the table {table_name[:80]!r}"))


async def put_catalog_entry(conn: Connection, entry: Mapping[str, Any]) -> bool:
    """Make this the only row of its asset. False if it already is.

    Raises Conflict if the table belongs to another asset, and Invalid for a name that is too long.
    """
    asset_id, table_name = entry["source_asset_id"], entry["table_name"]
    if len(table_name) > MAX_TABLE_NAME:
        raise Invalid(f"the name of the table has {len(table_name)} characters; {MAX_TABLE_NAME} are allowed")
    if await fetch(conn, "catalog_of_asset", {"asset_id": asset_id}) == [entry]:
        return False
    await remove_catalog_entries(conn, asset_id, kept_table=table_name)
    if not await fetch(conn, "save_catalog_entry", {"entry": encode_json(dict(entry))}):
        raise Conflict(f"table {table_name!r} is in the catalogue for another asset; unpublish that one first")
    return True


async def remove_catalog_entries(conn: Connection, asset_id: str, *, kept_table: str | None = None) -> list[str]:
    """Returns the tables whose rows were removed."""
    rows = await fetch(conn, "remove_catalog_entries", {"asset_id": asset_id, "kept_table": kept_table})
    return [row["table_name"] for row in rows]


class OutcomeUnknown(Unavailable):
    """The external database did not respond; it may have applied the change."""


async def write_externally(dsn: str, asset_id: str, revision: datetime, entry: Mapping[str, Any] | None) -> bool | None:
    """Make this the only row of the asset, or remove its rows; False if nothing had to change.

    None if a later revision is already there, which stays. Raises Unavailable, Conflict or Invalid; then nothing has
    changed, except perhaps after OutcomeUnknown.
    """
    async with _external_transaction(dsn) as conn:
        if not await fetch(conn, "advance_layer_revision", {"asset_id": asset_id, "revision": revision}):
            return None
        if entry is None:
            return bool(await remove_catalog_entries(conn, asset_id))
        return await put_catalog_entry(conn, entry)


@asynccontextmanager
async def _external_transaction(dsn: str) -> AsyncIterator[Connection]:
    """The database's messages go to the log only: they may name hosts and users."""
    is_open = False
    try:
        async with (
            asyncio.timeout(EXTERNAL_SECONDS),
            await connect(dsn, application="dagmaster layers", lock_timeout_seconds=LOCK_SECONDS) as conn,
            conn.transaction(),
        ):
            is_open = True
            await _prepare(conn)
            yield conn
    except (DatabaseUnavailable, TimeoutError, psycopg.OperationalError) as error:
        log.warning("the external database cannot be reached: %s", redact_text(str(error)))
        kind = OutcomeUnknown if is_open else Unavailable
        raise kind("the external database cannot be reached; see the server's log") from error
    except psycopg.Error as error:
        log.warning("the external database refused a layer: %s", redact_text(str(error)))
        reason = error.diag.message_primary or "see the server's log"
        raise Unavailable(f"the external database refused the change: {reason}") from error


async def _prepare(conn: Connection) -> None:
    """Create the catalogue if it is missing. Raises Conflict for dagmaster's own database."""
    [tables] = await fetch(conn, "external_tables")
    if tables["is_own"]:
        raise Conflict(
            "external_b2c_connection_string names dagmaster's own database, which also holds layers that are not "
            "public; name another one"
        )
    if not tables["is_complete"]:
        for table in ("layer_catalog", "layer_revisions"):
            for statement in await asyncio.to_thread(store.ddl.create_table_if_missing, table):
                await conn.execute(statement.encode())
