"""SQL of people on the tables of jobs and on global ones."""

from collections.abc import Mapping, Sequence

from dagmaster.data.configured import data_url, limits_of
from dagmaster.data.engine import location_of
from dagmaster.data.objects import DataContext
from dagmaster.data.sql_query import Answer, NamedTable, reading, run_query
from dagmaster.settings import Settings
from dagmaster.store.connect import Connection
from dagmaster.store.data_objects import find_queryable, queryable_names


class QueryableTables:
    """The tables of one engine, by the names that a query may use."""

    def __init__(self, conn: Connection, location: str) -> None:
        self._conn, self._location = conn, location

    async def find(self, names: Sequence[str]) -> Mapping[str, NamedTable]:
        rows = await find_queryable(self._conn, names, self._location)
        return {
            name: NamedTable(row["object_id"], [column["name"] for column in row["columns"]])
            for name, row in rows.items()
        }

    async def known(self) -> Sequence[str]:
        return await queryable_names(self._conn, self._location)


async def query_tables(conn: Connection, settings: Settings, sql: str, *, max_rows: int) -> Answer:
    """Run one SELECT on the engine of the settings."""
    url = data_url(settings)
    async with DataContext(url, limits=reading(limits_of(settings))) as context:
        return await run_query(context, sql, QueryableTables(conn, location_of(url)), max_rows=max_rows)
