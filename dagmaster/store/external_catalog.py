"""The catalogue in the external database, which everybody may read: the same tables, without the rest of the schema."""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, Final

import psycopg

from dagmaster import store
from dagmaster.errors import Conflict, DatabaseUnavailable, Unavailable
from dagmaster.model.redact import redact_text
from dagmaster.store.connect import Connection, connect
from dagmaster.store.layer_catalog import put_catalog_entry, remove_catalog_entries
from dagmaster.store.statements import fetch

log = logging.getLogger(__name__)

# Whoever has decided something waits for it.
SECONDS: Final = 5.0
LOCK_SECONDS: Final = 3.0


class OutcomeUnknown(Unavailable):
    """The external database did not answer; it may have taken the change."""


async def write_externally(dsn: str, asset_id: str, revision: datetime, entry: Mapping[str, Any] | None) -> bool | None:
    """Make this the only row of the asset, or remove its rows; false where nothing had to change.

    None where a later revision has arrived before: that one stays. Raises Unavailable, Conflict or Invalid, and then
    nothing has changed, except that after OutcomeUnknown it may have.
    """
    async with _external_transaction(dsn) as conn:
        if not await fetch(conn, "advance_layer_revision", {"asset_id": asset_id, "revision": revision}):
            return None
        if entry is None:
            return bool(await remove_catalog_entries(conn, asset_id))
        return await put_catalog_entry(conn, entry)


@asynccontextmanager
async def _external_transaction(dsn: str) -> AsyncIterator[Connection]:
    """What the database says is for the log: it may name hosts and users."""
    is_open = False
    try:
        async with asyncio.timeout(SECONDS), await _connect(dsn) as conn, conn.transaction():
            is_open = True
            await _prepare(conn)
            yield conn
    except (DatabaseUnavailable, TimeoutError, psycopg.OperationalError) as error:
        log.warning("the external database cannot be reached: %s", redact_text(str(error)))
        kind = OutcomeUnknown if is_open else Unavailable
        raise kind("the external database cannot be reached; the log of the server says why") from error
    except psycopg.Error as error:
        log.warning("the external database refused a layer: %s", redact_text(str(error)))
        reason = error.diag.message_primary or "the log of the server says why"
        raise Unavailable(f"the external database refused the change: {reason}") from error


async def _connect(dsn: str) -> Connection:
    return await connect(dsn, application="dagmaster layers", lock_timeout_seconds=LOCK_SECONDS)


async def _prepare(conn: Connection) -> None:
    """Create the catalogue where it is missing. Raises Conflict in a database of dagmaster's own."""
    [tables] = await fetch(conn, "external_tables")
    if tables["is_own"]:
        raise Conflict(
            "external_b2c_connection_string names a database of dagmaster itself: layers that are not public are there"
        )
    if not tables["is_complete"]:
        for table in ("layer_catalog", "layer_revisions"):
            for statement in await asyncio.to_thread(store.ddl.create_table_if_missing, table):
                await conn.execute(statement.encode())
