"""The database that a command works on. Apart from what runs jobs: most commands only ask."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from time import monotonic, sleep
from typing import Final

from psycopg.pq import PGconn, Ping

from dagmaster.errors import DatabaseUnavailable
from dagmaster.settings import Settings
from dagmaster.store.care import is_read_only
from dagmaster.store.connect import READ_ONLY, opened
from dagmaster.store.embedded import EmbeddedServer
from dagmaster.store.events import ensure_partitions
from dagmaster.store.revision import HEAD, check_schema, current_revision

log = logging.getLogger(__name__)

START_SECONDS: Final = 300.0
LOOK_SECONDS: Final = 1.0


@contextmanager
def database(settings: Settings, *, migrated: bool = True, writable: bool = False) -> Iterator[str]:
    """The database that the settings name, or the embedded one of the data folder; its address for libpq.

    `writable` waits until it can be written, for processes that run jobs: in a fail-over it is read-only for a while.
    """
    dsn = settings.database_dsn()
    if dsn is not None:
        if migrated:
            _check_in_spite_of_start(dsn, writable=writable)
        yield dsn
        return
    with EmbeddedServer.start(settings.data_dir) as server:
        if migrated:
            if settings.auto_migrate and asyncio.run(_revision(server.dsn)) != HEAD:
                # Alembic is a second of imports that only a new database needs.
                import_module("dagmaster.store.migrate").upgrade(server.dsn)
            asyncio.run(_check(server.dsn))
        yield server.dsn


async def _revision(dsn: str) -> str | None:
    async with opened(dsn, application="dagmaster") as conn:
        return await current_revision(conn)


def _check_in_spite_of_start(dsn: str, *, writable: bool) -> None:
    """A server that starts, recovers or shuts down says so, and is waited for; one that is not there is an error."""
    deadline = monotonic() + START_SECONDS
    while True:
        try:
            asyncio.run(_check(dsn, writable=writable))
            return
        except DatabaseUnavailable:
            if PGconn.ping(dsn.encode()) != Ping.REJECT or monotonic() > deadline:
                raise
        log.warning("the database does not take connections yet; trying again")
        sleep(LOOK_SECONDS)


async def _check(dsn: str, *, writable: bool = False) -> None:
    while True:
        try:
            async with opened(dsn, application="dagmaster") as conn:
                await check_schema(conn)
                if not await is_read_only(conn):
                    await ensure_partitions(conn)
                    return
        except READ_ONLY:  # It has become so a moment ago.
            pass
        if not writable:
            return
        log.warning("the database is read-only; waiting until it can be written")
        await asyncio.sleep(LOOK_SECONDS)
