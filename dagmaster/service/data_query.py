"""SQL queries of users on tables of jobs and on global tables."""

from collections.abc import Mapping, Sequence

from dagmaster.data.configured import data_url, limits_of
from dagmaster.data.engine import location_of
from dagmaster.data.objects import DataContext
from dagmaster.data.plans import Scan, Slice
from dagmaster.data.sql_query import MAX_BYTES, Answer, NamedTable, cut_rows, reading, run_query
from dagmaster.data.table_store import TableStore
from dagmaster.errors import Conflict
from dagmaster.service.data_catalog import Connect, DatabaseCatalog
from dagmaster.settings import Settings
from dagmaster.store.data_objects import find_queryable, list_queryable


class QueryableTables:
    """The tables of one engine, by the names that a query may use. No connection is held while the query runs.

    `store` creates real tables from small ones, whose rows are in their entries.
    """

    def __init__(self, connect: Connect, location: str, store: TableStore) -> None:
        self._connect, self._location, self._store = connect, location, store

    async def find(self, names: Sequence[str]) -> Mapping[str, NamedTable]:
        async with self._connect() as conn:
            rows = await find_queryable(conn, names, self._location)
        for row in rows.values():
            await self._store.admit(Scan(table_id=row["object_id"]))
        return {
            name: NamedTable(row["object_id"], [column["name"] for column in row["columns"]])
            for name, row in rows.items()
        }

    async def known(self) -> Sequence[str]:
        async with self._connect() as conn:
            return await list_queryable(conn, self._location)


async def query_tables(
    connect: Connect, settings: Settings, sql: str, *, max_rows: int, max_bytes: int = MAX_BYTES
) -> Answer:
    """Run one SELECT on the configured engine."""
    url, limits = data_url(settings), limits_of(settings)
    location = location_of(url)
    store = TableStore(url, catalog=DatabaseCatalog(connect, location), limits=limits)
    tables = QueryableTables(connect, location, store)
    try:
        async with DataContext(url, limits=reading(limits)) as context:
            return await run_query(context, sql, tables, max_rows=max_rows, max_bytes=max_bytes)
    finally:
        await store.release()


async def query_shared_tables(
    connect: Connect, settings: Settings, sql: str, *, max_rows: int, max_bytes: int = MAX_BYTES
) -> Answer:
    """For a server. Raises Conflict if the engine would run inside its process."""
    _check_shared(settings)
    return await query_tables(connect, settings, sql, max_rows=max_rows, max_bytes=max_bytes)


async def first_rows(
    connect: Connect, settings: Settings, table_id: int, location: str, *, max_rows: int, max_bytes: int
) -> Answer:
    """For a server. Raises Conflict for a table that it cannot read."""
    url = data_url(settings)
    if location_of(url) != location:
        raise Conflict(f"the table is in {location}, and this server reads {location_of(url)}")
    store = TableStore(url, catalog=DatabaseCatalog(connect, location), limits=reading(limits_of(settings)))
    plan = Slice(source=Scan(table_id=table_id), limit=max_rows + 1)
    try:
        rows = await store.inline_rows(plan)
        if rows is None:
            _check_shared(settings)
            rows = await store.read(plan)
    finally:
        await store.release()
    return cut_rows(rows.to_batches(), max_rows, max_bytes)


def _check_shared(settings: Settings) -> None:
    if data_url(settings).startswith("chdb:"):
        raise Conflict(
            "a server does not open the tables in its own process: set DAGMASTER_DATA_URL=service:///folder, "
            "or use `dagmaster data query`"
        )
