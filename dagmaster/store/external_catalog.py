"""The catalogue in the external, publicly readable database: the same tables, without the rest of the schema."""

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

# The caller of a decision waits for this write.
SECONDS: Final = 5.0
LOCK_SECONDS: Final = 3.0


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
        async with asyncio.timeout(SECONDS), await _connect(dsn) as conn, conn.transaction():
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


async def _connect(dsn: str) -> Connection:
    return await connect(dsn, application="dagmaster layers", lock_timeout_seconds=LOCK_SECONDS)


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
