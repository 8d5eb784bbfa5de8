"""Drop expired tables."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from dagmaster.data.engine import location_of
from dagmaster.data.table_store import TableStore
from dagmaster.service.data_catalog import DatabaseCatalog
from dagmaster.store.connect import Connection


async def sweep(conn: Connection, url: str) -> None:
    """Drop the expired tables of this engine, with their entries."""

    @asynccontextmanager
    async def connect() -> AsyncIterator[Connection]:
        yield conn

    store = TableStore(url, catalog=DatabaseCatalog(connect, location_of(url)))
    try:
        await store.sweep()
    finally:
        await store.release()
