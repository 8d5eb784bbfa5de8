"""The database that a command works on. Apart from what runs jobs: most commands only ask."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

from dagmaster.settings import Settings
from dagmaster.store.connect import opened
from dagmaster.store.embedded import EmbeddedServer
from dagmaster.store.events import ensure_partitions
from dagmaster.store.revision import HEAD, check_schema, current_revision


@contextmanager
def database(settings: Settings, *, migrated: bool = True) -> Iterator[str]:
    """The database that the settings name, or the embedded one of the data folder; its address for libpq."""
    dsn = settings.database_dsn()
    if dsn is not None:
        if migrated:
            asyncio.run(_check(dsn))
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


async def _check(dsn: str) -> None:
    async with opened(dsn, application="dagmaster") as conn:
        await check_schema(conn)
        await ensure_partitions(conn)
