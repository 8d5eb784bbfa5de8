"""The tables of an engine: made, filled and dropped by their ids, with an entry in the catalog for each."""

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa

from dagmaster.data.arrow import clickhouse_type, table_from_value
from dagmaster.data.catalog import Catalog, NewTable, Scope, StoredTable
from dagmaster.data.engine import Engine, open_engine
from dagmaster.data.plans import tables_of, write_plan
from dagmaster.data.sql import ROW_ID, Query, compile_rows, compile_stored, quote, table_name
from dagmaster.errors import Conflict, Invalid, QueryFailed, UnknownTable
from dagmaster.snowflakes import new_id

T = TypeVar("T")

DEDUPLICATION_WINDOW = 10_000
APPENDED_AT_ONCE = 1_000_000


class TableStore:
    """Without a catalog there are temporary tables alone: nothing would remember the others."""

    def __init__(self, url: str, *, catalog: Catalog | None = None, scope: Scope | str = Scope.TEMP) -> None:
        self.url = url
        self.catalog = catalog
        self.scope = Scope(scope)
        self._engine: Engine | None = None
        self._columns: dict[int, Mapping[str, str]] = {}
        self._temporary: dict[int, None] = {}
        self._opening = threading.Lock()

    async def close(self) -> None:
        """Drop the temporary tables and let go of the engine."""
        if self._engine is None:
            return
        await self.drop(list(self._temporary))
        await self.sweep()
        engine, self._engine = self._engine, None
        await self.run(engine.close)

    async def store_value(self, value: Any, *, name: str | None = None, scope: Scope | str | None = None) -> int:
        """Store a scalar, a list, a dict of lists, records or Arrow data; returns the id of its table."""
        rows = table_from_value(value)
        types = {column: clickhouse_type(rows[column], column) for column in rows.column_names}
        new = self._new_table(name, scope)

        def store() -> None:
            self._create(new.table_id, types)
            self._insert(new.table_id, types, rows, 0, None)

        await self._announced(new, store)
        return new.table_id

    async def store_plan(self, plan: Any, *, name: str | None = None, scope: Scope | str | None = None) -> int:
        """Run the plan once and store its rows; returns the id of the table."""
        query = await self.run(lambda: compile_stored(plan, self.columns_of))
        new = self._new_table(name, scope, write_plan(plan), query.sql)

        def store() -> None:
            types = self.types_of(query)
            types.pop(ROW_ID)
            self._create(new.table_id, types)
            listed = ", ".join(quote(column) for column in (ROW_ID, *query.columns))
            self.engine.command(
                f"INSERT INTO {table_name(new.table_id)} ({listed}) {query.sql} SETTINGS join_use_nulls = 1, "
                "cast_keep_nullable = 1, session_timezone = 'UTC'",
                query.parameters,
            )

        await self._announced(new, store)
        return new.table_id

    async def append(self, table_id: int, rows: pa.Table, token: str | None) -> None:
        """Add rows after the last one. Those of one token are added once, however often that is tried."""
        types = await self.run(lambda: self.table_types(table_id))
        if set(rows.column_names) != set(types):
            raise Invalid(
                f"rows for table {table_id} need the columns {', '.join(types)}, not {', '.join(rows.column_names)}"
            )
        for number, start in enumerate(range(0, rows.num_rows, APPENDED_AT_ONCE)):
            chunk = rows.select(list(types)).slice(start, APPENDED_AT_ONCE)
            await self.run(partial(self._append_chunk, table_id, types, chunk, f"{token}:{number}" if token else None))
        if self.catalog is not None:
            await self.catalog.complete(await self.run(lambda: self._stored(table_id)))

    def _append_chunk(self, table_id: int, types: Mapping[str, str], chunk: pa.Table, token: str | None) -> None:
        """One at a time, so that row ids stay dense."""
        with self.engine.appending:
            self._insert(table_id, types, chunk, self._rows(table_id), token)

    async def get_table(self, name: str, scope: Scope | str = Scope.GLOBAL) -> int:
        """The id of the table of this name. Raises UnknownTable."""
        scope = Scope(scope)
        found = await self.catalog.find(name, scope) if self.catalog is not None else None
        if found is None:
            raise UnknownTable(
                f"no table of scope {scope} is named {name!r}; `dagmaster data list` shows those there are"
            )
        return found

    async def drop(self, table_ids: Sequence[int]) -> None:
        """The entry in the catalog goes last: a table that is left over is found there again."""
        if not table_ids:
            return
        if self.catalog is not None:
            await self.catalog.expire(table_ids)
        for table_id in table_ids:
            await self.run(partial(self.engine.command, f"DROP TABLE IF EXISTS {table_name(table_id)} SYNC"))
            self._temporary.pop(table_id, None)
            self._columns.pop(table_id, None)
        if self.catalog is not None:
            await self.catalog.forget(table_ids)

    async def sweep(self) -> None:
        """Drop what has expired meanwhile."""
        if self.catalog is not None:
            await self.drop(list(await self.catalog.expired()))

    async def keep(self, plans: Sequence[Any]) -> None:
        """Temporary tables that these plans read live as long as the job."""
        kept = [
            table_id
            for table_id in {table for plan in plans for table in tables_of(plan)}
            if table_id in self._temporary
        ]
        if kept and self.catalog is not None:
            await self.catalog.keep(kept)
            for table_id in kept:
                del self._temporary[table_id]

    async def run(self, work: Callable[[], T]) -> T:
        """In a thread: the engine blocks."""
        return await asyncio.to_thread(work)

    @property
    def engine(self) -> Engine:
        return self._opened()

    def columns_of(self, table_id: int) -> Sequence[str]:
        return list(self.table_types(table_id))

    def table_types(self, table_id: int) -> dict[str, str]:
        """The columns of a table and their ClickHouse types. Raises UnknownTable."""
        if table_id not in self._columns:
            try:
                found = self.engine.query(f"DESCRIBE TABLE {table_name(table_id)}", {}).to_pylist()
            except QueryFailed as error:
                raise UnknownTable(f"there is no table {table_id}; it may have been dropped") from error
            self._columns[table_id] = {row["name"]: row["type"] for row in found if row["name"] != ROW_ID}
        return dict(self._columns[table_id])

    def types_of(self, query: Query) -> dict[str, str]:
        """As ClickHouse sees them."""
        rows = self.engine.query(f"DESCRIBE ({query.sql})", query.parameters).to_pylist()
        return {row["name"]: row["type"] for row in rows}

    def compiled(self, plan: Any) -> Query:
        return compile_rows(plan, self.columns_of)

    def _opened(self) -> Engine:
        with self._opening:
            if self._engine is None:
                self._engine = open_engine(self.url)
            return self._engine

    def _new_table(
        self, name: str | None, scope: Scope | str | None, plan: Mapping[str, Any] | None = None, sql: str | None = None
    ) -> NewTable:
        chosen = self.scope if scope is None else Scope(scope)
        if self.catalog is None and (chosen is not Scope.TEMP or name is not None):
            raise Conflict("named tables and those that are kept need a catalog: use dagmaster.DataContext")
        if name is not None and not 0 < len(name) <= 128:
            raise Invalid("the name of a table has 1 to 128 characters")
        return NewTable(new_id(), chosen, name, plan, sql)

    async def _announced(self, new: NewTable, store: Callable[[], None]) -> None:
        if self.catalog is not None:
            await self.catalog.announce(new)
        self._temporary[new.table_id] = None  # Until it is complete it goes with the context.
        await self.run(store)
        if self.catalog is not None:
            await self.catalog.complete(await self.run(lambda: self._stored(new.table_id)))
        if new.scope is not Scope.TEMP:
            del self._temporary[new.table_id]

    def _create(self, table_id: int, types: Mapping[str, str]) -> None:
        listed = ", ".join(f"{quote(name)} {kind}" for name, kind in types.items())
        self.engine.command(
            f"CREATE TABLE {table_name(table_id)} ({quote(ROW_ID)} UInt64 CODEC(Delta, ZSTD), {listed}) "
            f"ENGINE = MergeTree ORDER BY {quote(ROW_ID)} "
            f"SETTINGS non_replicated_deduplication_window = {DEDUPLICATION_WINDOW}"
        )

    def _insert(self, table_id: int, types: Mapping[str, str], rows: pa.Table, first: int, token: str | None) -> None:
        numbers = pa.array(range(first, first + rows.num_rows), type=pa.uint64())
        numbered = rows.add_column(0, ROW_ID, numbers)
        if rows.num_rows:
            columns = ", ".join(f"{quote(column)} {kind}" for column, kind in {ROW_ID: "UInt64", **types}.items())
            self.engine.insert(table_name(table_id), columns, numbered, token)

    def _rows(self, table_id: int) -> int:
        rows: int = self.engine.query(f"SELECT count() AS n FROM {table_name(table_id)}", {})["n"][0].as_py()
        return rows

    def _stored(self, table_id: int) -> StoredTable:
        sql = (
            "SELECT total_rows AS n, total_bytes AS size FROM system.tables WHERE database || '.' || name = {t:String}"
        )
        [row] = self.engine.query(sql, {"t": table_name(table_id)}).to_pylist()
        return StoredTable(table_id, row["n"] or 0, row["size"] or 0, self.table_types(table_id))
