"""SQL of people on the tables of jobs and on global ones."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager

from dagmaster.data.configured import data_url, limits_of
from dagmaster.data.engine import location_of
from dagmaster.data.objects import DataContext
from dagmaster.data.sql_query import Answer, NamedTable, reading, run_query
from dagmaster.errors import Conflict
from dagmaster.settings import Settings
from dagmaster.store.connect import Connection
from dagmaster.store.data_objects import find_queryable, queryable_names

Connect = Callable[[], AbstractAsyncContextManager[Connection]]


class QueryableTables:
    """The tables of one engine, by the names that a query may use. No connection is held while the query runs."""

    def __init__(self, connect: Connect, location: str) -> None:
        self._connect, self._location = connect, location

    async def find(self, names: Sequence[str]) -> Mapping[str, NamedTable]:
        async with self._connect() as conn:
            rows = await find_queryable(conn, names, self._location)
        return {
            name: NamedTable(row["object_id"], [column["name"] for column in row["columns"]])
            for name, row in rows.items()
        }

    async def known(self) -> Sequence[str]:
        async with self._connect() as conn:
            return await queryable_names(conn, self._location)


async def query_tables(connect: Connect, settings: Settings, sql: str, *, max_rows: int) -> Answer:
    """Run one SELECT on the engine of the settings."""
    url = data_url(settings)
    async with DataContext(url, limits=reading(limits_of(settings))) as context:
        return await run_query(context, sql, QueryableTables(connect, location_of(url)), max_rows=max_rows)


async def query_shared_tables(connect: Connect, settings: Settings, sql: str, *, max_rows: int) -> Answer:
    """For a server. Raises Conflict if the engine would be inside of its process."""
    if data_url(settings).startswith("chdb:"):
        raise Conflict(
            "a server does not open the tables in its own process: set DAGMASTER_DATA_URL=service:///folder, "
            "or use `dagmaster data query`"
        )
    return await query_tables(connect, settings, sql, max_rows=max_rows)
