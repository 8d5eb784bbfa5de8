"""The catalogue of tables in the jobs' database."""

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

from dagmaster.data.catalog import InlineTable, NewTable, Scope, StoredTable
from dagmaster.store import data_objects
from dagmaster.store.connect import Connection

Connect = Callable[[], AbstractAsyncContextManager[Connection]]


class Attempt(Protocol):
    """The task that uses the tables."""

    @property
    def job_id(self) -> int: ...

    @property
    def node_id(self) -> str: ...

    @property
    def task_id(self) -> str: ...


class DatabaseCatalog:
    """The entries of one engine's tables, for a task or a program. No connection is held between calls."""

    def __init__(
        self,
        connect: Connect,
        location: str,
        *,
        attempt: Attempt | None = None,
        program_id: int | None = None,
        max_tables: int | None = None,
    ) -> None:
        self._connect, self._location = connect, location
        self._attempt, self._program_id = attempt, program_id
        self._job_id = attempt.job_id if attempt is not None else None
        self._max_tables = max_tables

    async def announce(self, table: NewTable) -> None:
        async with self._connect() as conn:
            await data_objects.announce(conn, self._entry(table), plan=table.plan, sql=table.sql)

    async def add_inline(self, table: NewTable, stored: StoredTable, rows: bytes) -> None:
        async with self._connect() as conn:
            await data_objects.add_inline(
                conn, self._entry(table), row_count=stored.rows, columns=stored.columns, inline_rows=rows
            )

    async def find_inline(self, table_ids: Sequence[int]) -> Mapping[int, InlineTable]:
        async with self._connect() as conn:
            rows = await data_objects.find_inline(conn, table_ids)
        return {
            row["object_id"]: InlineTable(
                row["inline_rows"], {column["name"]: column["type"] for column in row["columns"]}
            )
            for row in rows
        }

    @asynccontextmanager
    async def tabulating(self, table_id: int) -> AsyncIterator[None]:
        async with self._connect() as conn, data_objects.tabulating(conn, table_id):
            yield

    def _entry(self, table: NewTable) -> data_objects.NewObject:
        return data_objects.NewObject(
            table.table_id,
            table.scope,
            self._location,
            table.name,
            self._job_id,
            self._attempt.task_id if self._attempt is not None else None,
            self._program_id,
            table.inputs,
            self._max_tables,
        )

    async def complete(self, table: StoredTable) -> None:
        async with self._connect() as conn:
            await data_objects.complete(
                conn, table.table_id, row_count=table.rows, size_bytes=table.size_bytes, columns=table.columns
            )

    @asynccontextmanager
    async def appending(self, table_id: int) -> AsyncIterator[None]:
        async with self._connect() as conn, conn.transaction():
            await data_objects.lock_for_append(conn, table_id)
            yield

    async def find(self, name: str, scope: Scope) -> int | None:
        async with self._connect() as conn:
            table_id = await data_objects.find_object(conn, name, scope, location=self._location, job_id=self._job_id)
            if table_id is not None and self._attempt is not None:
                await data_objects.use(conn, [table_id], self._attempt.job_id, self._attempt.node_id)
            return table_id

    async def use(self, table_ids: Sequence[int]) -> None:
        if self._attempt is not None:
            async with self._connect() as conn:
                await data_objects.use(conn, table_ids, self._attempt.job_id, self._attempt.node_id)

    async def keep(self, table_ids: Sequence[int]) -> None:
        async with self._connect() as conn:
            await data_objects.keep(conn, table_ids)

    async def expired(self) -> Sequence[int]:
        async with self._connect() as conn:
            return await data_objects.expired(conn, self._location)

    async def expire(self, table_ids: Sequence[int]) -> Collection[int]:
        async with self._connect() as conn:
            return await data_objects.expire(conn, table_ids)

    async def forget(self, table_ids: Sequence[int]) -> None:
        async with self._connect() as conn:
            await data_objects.forget(conn, table_ids)
