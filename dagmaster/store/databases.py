"""The database of a command: started, migrated and checked before use."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from time import monotonic, sleep
from typing import Final

from psycopg.pq import PGconn, Ping

from dagmaster import store
from dagmaster.errors import DatabaseUnavailable, TooManyConnections
from dagmaster.settings import Settings
from dagmaster.store.connect import READ_ONLY, opened
from dagmaster.store.embedded import EmbeddedServer
from dagmaster.store.schema import HEAD, check_schema, current_revision, ensure_partitions, is_read_only

log = logging.getLogger(__name__)

START_SECONDS: Final = 300.0
POLL_SECONDS: Final = 1.0


@contextmanager
def database(
    settings: Settings, *, migrated: bool = True, writable: bool = False, guarded: bool = False
) -> Iterator[str]:
    """Yield the DSN of the configured database, or of the embedded one in the data folder.

    `writable` waits until writes succeed, for processes that run jobs: a failover makes the database read-only for a
    while. A `guarded` embedded server is restarted whenever it dies.
    """
    dsn = settings.database_dsn()
    if dsn is not None:
        if migrated:
            # Other programs may use the server, so it is migrated only if the settings say so.
            _prepare_when_started(dsn, writable=writable, is_migrated=settings.auto_migrate is True)
        yield dsn
        return
    with EmbeddedServer.start(settings.data_dir) as server:
        if migrated:
            is_migrated = settings.auto_migrate is not False
            _prepare_when_started(server.dsn, writable=writable, is_migrated=is_migrated)
        with server.guarded() if guarded else nullcontext():
            yield server.dsn


async def _revision(dsn: str) -> str | None:
    async with opened(dsn, application="dagmaster") as conn:
        return await current_revision(conn)


def _prepare_when_started(dsn: str, *, writable: bool, is_migrated: bool) -> None:
    """Wait for a server that starts, recovers or shuts down; a server that does not answer is an error.

    If no connection is free, a command waits for a while, and a server process (`writable`) indefinitely.
    """
    deadline = monotonic() + START_SECONDS
    while True:
        try:
            if is_migrated and (asyncio.run(_revision(dsn)) or "") < HEAD:
                # Takes a lock: concurrent processes wait, and find the schema migrated.
                store.migrate.upgrade(dsn)
            asyncio.run(_check(dsn, writable=writable))
            return
        except TooManyConnections:
            if not writable:
                raise
        except DatabaseUnavailable:
            if PGconn.ping(dsn.encode()) != Ping.REJECT or monotonic() > deadline:
                raise
        log.warning("the database does not accept connections yet; retrying")
        sleep(POLL_SECONDS)


async def _check(dsn: str, *, writable: bool = False) -> None:
    while not await _is_ready(dsn) and writable:
        log.warning("the database is read-only; waiting until it can be written")
        await asyncio.sleep(POLL_SECONDS)


async def _is_ready(dsn: str) -> bool:
    """Whether the database is writable. Raises if its schema does not match."""
    try:
        async with opened(dsn, application="dagmaster") as conn:
            await check_schema(conn)
            if await is_read_only(conn):
                return False
            await ensure_partitions(conn)
            return True
    except READ_ONLY:  # It became read-only a moment ago.
        return False
