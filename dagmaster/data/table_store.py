"""The tables of an engine: created, filled and dropped by id, with a catalogue entry for each."""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from contextvars import copy_context
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from dagmaster.data.arrow import clickhouse_type, clickhouse_types, digest_of, row_numbers, table_from_value
from dagmaster.data.catalog import Catalog, InlineTable, NewTable, Scope, StoredTable
from dagmaster.data.engine import NO_LIMITS, EngineRunner, Limits
from dagmaster.data.files import opened_file
from dagmaster.data.inline import decode_rows, encode_rows, inline_values, range_of, rows_of_reference
from dagmaster.data.plans import Scan, digest_of_plan, tables_of, write_plan
from dagmaster.data.references import InlineRows
from dagmaster.data.sql import ROW_ID, Columns, Query, compile_count, compile_rows, compile_stored, quote, table_name
from dagmaster.data.statements import ROW_ID_COLUMN
from dagmaster.errors import Conflict, Invalid, QueryFailed, TooLarge, UnknownTable
from dagmaster.snowflakes import new_id

T = TypeVar("T")

# Opens the file of a URL on this machine. Raises for one that may not be read.
Fetch = Callable[[str], AbstractAsyncContextManager[Path]]

INSERTED_AT_ONCE = 1_000_000
# Of one append. It is one insert, which adds all rows or none, and for which the engine needs several times the memory.
MAX_APPEND_BYTES = 256 * 1024 * 1024


class TableStore(EngineRunner):
    """Without a catalogue there are only temporary tables: nothing would track the others."""

    def __init__(
        self,
        url: str,
        *,
        catalog: Catalog | None = None,
        scope: Scope | str = Scope.TEMP,
        limits: Limits = NO_LIMITS,
    ) -> None:
        super().__init__(url, limits)
        self.catalog = catalog
        self.scope = Scope(scope)
        self._columns: dict[int, Mapping[str, str]] = {}
        # Known to have a real table; the rows of others may be in their entries.
        self._tabulated: set[int] = set()
        self._temporary: dict[int, None] = {}
        # Of small tables that no catalog knows: other processes get them with their references.
        self._values: dict[int, InlineRows] = {}
        # The task that appends, whatever its attempt, and how often it has appended the same.
        self.appender: str | None = None
        self._appends: Counter[str] = Counter()
        self.fetch: Fetch | None = None
        # Named by incoming references, and not yet authorised.
        self._received: set[int] = set()
        # All tables of incoming references: a value may be computed from them.
        self._arguments: set[int] = set()
        self._appending = asyncio.Lock()

    async def close(self) -> None:
        """Drop the temporary tables and release the engine."""
        try:
            await self.drop(list(self._temporary))
            if self._engine is not None:
                await self.sweep()
        finally:
            await self.release()

    async def store_value(self, value: Any, *, name: str | None = None, scope: Scope | str | None = None) -> int:
        """Store a scalar, a list, a dict of lists, records or Arrow data; returns the id of its table."""
        rows = table_from_value(value)
        types = {column: clickhouse_type(rows[column], column) for column in rows.column_names}
        new = self._new_table(name, scope)
        if self.catalog is not None and (inline := encode_rows(rows, types)) is not None:
            await self.catalog.add_inline(new, StoredTable(new.table_id, rows.num_rows, len(inline), types), inline)
            self._columns[new.table_id] = types
            if new.scope is Scope.TEMP:
                self._temporary[new.table_id] = None
            return new.table_id

        def store() -> None:
            self._create(new.table_id, types)
            for start in range(0, rows.num_rows, INSERTED_AT_ONCE):
                chunk = rows.slice(start, INSERTED_AT_ONCE)
                self._insert(new.table_id, chunk, start, f"{new.table_id}:{start}")
            self._columns[new.table_id] = types

        # The known sizes are not queried: there are many small values.
        await self._announced(new, store, StoredTable(new.table_id, rows.num_rows, rows.nbytes, types))
        if self.catalog is None and (values := inline_values(rows, types)) is not None:
            self._values[new.table_id] = values
        return new.table_id

    def receive_rows(self, table_id: int | str, inline: InlineRows) -> int:
        """Store the rows that came with a reference, unless it is of a table of this context; returns the table's id.

        The id in the reference means nothing here otherwise: it may be that of another table.
        """
        if (known := int(table_id) if str(table_id).isdecimal() else 0) and self._values.get(known) == inline:
            return known
        return self.wait_for(self.store_value(rows_of_reference(inline)))

    def values_of(self, table_id: int) -> InlineRows | None:
        """For its reference, if that must have them."""
        return self._values.get(table_id)

    async def store_file(
        self, path: Path, format: str, *, name: str | None = None, scope: Scope | str | None = None
    ) -> int:
        """Store the rows of a file in batches; returns the id of the table."""
        new = self._new_table(name, scope)

        def store() -> None:
            with opened_file(path, format) as file:
                self._create(new.table_id, clickhouse_types(file.schema))
                start = 0
                for batch in file.batches:
                    self._insert(new.table_id, pa.Table.from_batches([batch]), start, f"{new.table_id}:{start}")
                    start += batch.num_rows

        return await self._announced(new, store)

    async def store_plan(self, plan: Any, *, name: str | None = None, scope: Scope | str | None = None) -> int:
        """Run the plan once and store its rows; returns the id of the table."""
        await self.admit(plan)
        query = await self.run(lambda: compile_stored(plan, self.columns_of))
        new = self._new_table(name, scope, plan, query.sql)

        def store() -> None:
            types = self.types_of(query)
            types.pop(ROW_ID)
            self._create(new.table_id, types)
            columns = ", ".join(quote(column) for column in (ROW_ID, *query.columns))
            self.engine.fill(table_name(new.table_id), columns, query.sql, query.parameters)

        return await self._announced(new, store)

    async def append(self, table_id: int, rows: pa.Table, token: str | None) -> None:
        """Add rows after the last one, all or none. Those of one token are added once, however often that is tried.

        Raises TooLarge for more than MAX_APPEND_BYTES.
        """
        await self.admit(Scan(table_id=table_id))
        types = await self.run(lambda: self.table_types(table_id))
        if set(rows.column_names) != set(types):
            raise Invalid(
                f"rows for table {table_id} need the columns {', '.join(types)}, not {', '.join(rows.column_names)}"
            )
        if rows.nbytes > MAX_APPEND_BYTES:
            raise TooLarge(
                f"the rows have {rows.nbytes:,} bytes, and one append adds at most {MAX_APPEND_BYTES:,}: "
                "append them in parts, or store them as an Object and materialize the union() of both"
            )
        self._values.pop(table_id, None)
        # A token of its own at least: then an insert whose answer was lost can be repeated.
        token = token or f"{table_id}:{new_id()}"
        # One append at a time, so that row ids stay dense. Without a catalogue no other process knows the table.
        async with self.catalog.appending(table_id) if self.catalog is not None else self._appending:
            await self.run(lambda: self._insert(table_id, rows.select(list(types)), self._rows(table_id), token))
        if self.catalog is not None:
            await self.catalog.complete(await self.run(lambda: self._stored(table_id)))

    def append_token(self, content: Any) -> str | None:
        """The same token in each attempt of a task for the same rows or plan; None outside of tasks.

        Repeated appends of the same content in a task are numbered, because they are intended.
        """
        if self.appender is None:
            return None
        digest = digest_of(content) if isinstance(content, pa.Table) else digest_of_plan(content)
        self._appends[digest] += 1
        return f"{self.appender}:{digest}:{self._appends[digest]}"

    async def drop(self, table_ids: Sequence[int]) -> None:
        """The catalogue entry is removed last: a table that is left over is found through it."""
        if not table_ids:
            return
        tabulated = await self.catalog.expire(table_ids) if self.catalog is not None else table_ids
        for table_id in table_ids:
            if table_id in tabulated:
                await self.run(partial(self._drop, table_id))
            self._temporary.pop(table_id, None)
            self._columns.pop(table_id, None)
            self._values.pop(table_id, None)
            self._tabulated.discard(table_id)
        if self.catalog is not None:
            await self.catalog.forget(table_ids)

    async def sweep(self) -> None:
        """Drop expired tables."""
        if self.catalog is not None:
            await self.drop(list(await self.catalog.expired()))

    async def keep(self, plans: Sequence[Any]) -> None:
        """Keep the temporary tables of these plans as long as the job."""
        kept = [
            table_id
            for table_id in {table for plan in plans for table in tables_of(plan)}
            if table_id in self._temporary
        ]
        if kept and self.catalog is not None:
            await self.catalog.keep(kept)
            for table_id in kept:
                del self._temporary[table_id]

    def receive(self, plan: Any) -> None:
        """Record the tables of an incoming reference, which must be authorised before its plan runs."""
        self._received |= tables_of(plan)
        self._arguments |= tables_of(plan)

    async def admit(self, plan: Any) -> None:
        """Call it before SQL reads the tables. Raises UnknownTable for tables that may not be read here."""
        await self._authorize(plan)
        unknown = sorted(tables_of(plan) - self._tabulated)
        if unknown and self.catalog is not None:
            for table_id, inline in (await self.catalog.find_inline(unknown)).items():
                await self._tabulate(table_id, inline)
        self._tabulated.update(unknown)

    async def read(self, plan: Any) -> pa.Table:
        """All rows of the plan."""
        if (inline := await self.inline_rows(plan)) is not None:
            return inline
        return await self.query(plan, compile_rows)

    async def count(self, plan: Any) -> int:
        """The number of its rows."""
        if (inline := await self.inline_rows(plan)) is not None:
            return int(inline.num_rows)
        return int((await self.query(plan, compile_count))["rows"][0].as_py())

    async def query(self, plan: Any, compile_query: Callable[[Any, Columns], Query], prefix: str = "") -> pa.Table:
        """The answer to a query of the plan, such as its rows or their number."""

        def ask() -> pa.Table:
            query = compile_query(plan, self.columns_of)
            return self.engine.query(prefix + query.sql, query.parameters)

        await self.admit(plan)
        return await self.run(ask)

    async def inline_rows(self, plan: Any) -> pa.Table | None:
        """The rows of a plan that is a range of a small table without a real table: the engine is not needed."""
        if self.catalog is None or (ranged := range_of(plan)) is None or ranged[0] in self._tabulated:
            return None
        await self._authorize(plan)
        table_id, slices = ranged
        # Read each time: an append by another process gives it a real table.
        inline = (await self.catalog.find_inline([table_id])).get(table_id)
        if inline is None:
            return None
        rows = decode_rows(inline.rows)
        for part in slices:
            rows = rows.slice(part.offset, part.limit)
        return rows

    async def _tabulate(self, table_id: int, inline: InlineTable) -> None:
        """May race with other processes: rows with the same token are added once."""
        assert self.catalog is not None

        def store() -> None:
            self._create(table_id, inline.columns)
            self._insert(table_id, decode_rows(inline.rows), 0, f"{table_id}:0")

        async with self.catalog.tabulating(table_id):
            await self.run(store)
        self._columns[table_id] = inline.columns

    async def _authorize(self, plan: Any) -> None:
        received = sorted(tables_of(plan) & self._received)
        if received and self.catalog is not None:
            await self.catalog.use(received)
        self._received.difference_update(received)

    def columns_of(self, table_id: int) -> Sequence[str]:
        return list(self.table_types(table_id))

    def table_types(self, table_id: int) -> dict[str, str]:
        """The columns of a table and their ClickHouse types. Raises UnknownTable."""
        if table_id in self._received or not self._columns.keys() | self._tabulated >= {table_id}:
            self.wait_for(self._learn(table_id))
        if table_id not in self._columns:
            try:
                found = self.engine.query(f"DESCRIBE TABLE {table_name(table_id)}", {}).to_pylist()
            except QueryFailed as error:
                raise UnknownTable(f"there is no table {table_id}; it may have been dropped") from error
            self._columns[table_id] = {row["name"]: row["type"] for row in found if row["name"] != ROW_ID}
        return dict(self._columns[table_id])

    async def _learn(self, table_id: int) -> None:
        """The columns of a small table are in its entry."""
        await self._authorize(Scan(table_id=table_id))
        if self.catalog is not None and (inline := (await self.catalog.find_inline([table_id])).get(table_id)):
            self._columns[table_id] = inline.columns

    @staticmethod
    def wait_for(work: Coroutine[Any, Any, T]) -> T:
        """For calls that do not wait, such as schema(): a thread may."""
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(copy_context().run, lambda: asyncio.run(work)).result()

    def types_of(self, query: Query) -> dict[str, str]:
        """The ClickHouse types."""
        rows = self.engine.query(f"DESCRIBE ({query.sql})", query.parameters).to_pylist()
        return {row["name"]: row["type"] for row in rows}

    def compiled(self, plan: Any) -> Query:
        return compile_rows(plan, self.columns_of)

    def _new_table(
        self, name: str | None, scope: Scope | str | None, plan: Any = None, sql: str | None = None
    ) -> NewTable:
        chosen = self.scope if scope is None else Scope(scope)
        if self.catalog is None and (chosen is not Scope.TEMP or name is not None):
            raise Conflict("named tables and those that are kept need a catalog: use dagmaster.DataContext")
        if name is not None and not 0 < len(name) <= 128:
            raise Invalid("the name of a table has 1 to 128 characters")
        if plan is None:
            return NewTable(new_id(), chosen, name, inputs=sorted(self._arguments))
        return NewTable(new_id(), chosen, name, write_plan(plan), sql, sorted(tables_of(plan)))

    async def _announced(self, new: NewTable, store: Callable[[], None], stored: StoredTable | None = None) -> int:
        if self.catalog is not None:
            await self.catalog.announce(new)
        self._temporary[new.table_id] = None  # Dropped with the context until it is complete.
        await self.run(store)
        self._tabulated.add(new.table_id)
        if self.catalog is not None:
            if stored is None:
                stored = await self.run(lambda: self._stored(new.table_id))
            await self.catalog.complete(stored)
        if new.scope is not Scope.TEMP:
            del self._temporary[new.table_id]
        return new.table_id

    def _create(self, table_id: int, types: Mapping[str, str]) -> None:
        columns = ", ".join(f"{quote(name)} {kind}" for name, kind in types.items())
        self.engine.create(table_name(table_id), f"{ROW_ID_COLUMN}, {columns}")

    def _drop(self, table_id: int) -> None:
        self.engine.drop(table_name(table_id))

    def _insert(self, table_id: int, rows: pa.Table, first: int, token: str) -> None:
        if rows.num_rows:
            numbered = rows.add_column(0, ROW_ID, row_numbers(first, rows.num_rows))
            self.engine.insert(table_name(table_id), numbered, token)

    def _rows(self, table_id: int) -> int:
        rows: int = self.engine.query(f"SELECT count() AS n FROM {table_name(table_id)}", {})["n"][0].as_py()
        return rows

    def _stored(self, table_id: int) -> StoredTable:
        size_bytes = self.engine.size_bytes(table_name(table_id))
        return StoredTable(table_id, self._rows(table_id), size_bytes, self.table_types(table_id))
