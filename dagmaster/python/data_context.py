"""Tables of programs and tasks, with their entries in the database."""

import asyncio
import atexit
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from threading import Lock

from dagmaster.data.catalog import NewTable, Scope, StoredTable
from dagmaster.data.configured import data_url, limits_of
from dagmaster.data.engine import Engine, location_of, open_engine
from dagmaster.data.objects import DataContext as BaseContext
from dagmaster.python.context import session
from dagmaster.settings import load_settings
from dagmaster.storage import LocalFile, open_storage
from dagmaster.store import data_objects


class DatabaseCatalog:
    """Entries in PostgreSQL of the tables of one engine, for a job's task or for a program."""

    def __init__(
        self, location: str, job_id: int | None = None, task_id: str | None = None, max_tables: int | None = None
    ) -> None:
        self._location, self._job_id, self._task_id = location, job_id, task_id
        self._max_tables = max_tables

    async def announce(self, table: NewTable) -> None:
        async with session() as conn:
            await data_objects.announce(
                conn,
                table.table_id,
                table.scope,
                location=self._location,
                name=table.name,
                job_id=self._job_id,
                task_id=self._task_id,
                plan=table.plan,
                sql=table.sql,
                inputs=table.inputs,
                max_tables=self._max_tables,
            )

    async def complete(self, table: StoredTable) -> None:
        async with session() as conn:
            await data_objects.complete(
                conn, table.table_id, row_count=table.rows, size_bytes=table.size_bytes, columns=table.columns
            )

    @asynccontextmanager
    async def appending(self, table_id: int) -> AsyncIterator[None]:
        async with session() as conn, conn.transaction():
            await data_objects.lock_for_append(conn, table_id)
            yield

    async def find(self, name: str, scope: Scope) -> int | None:
        async with session() as conn:
            table_id = await data_objects.find_object(conn, name, scope, location=self._location, job_id=self._job_id)
            if table_id is not None and self._job_id is not None:
                await data_objects.use(conn, [table_id], self._job_id)
            return table_id

    async def use(self, table_ids: Sequence[int]) -> None:
        if self._job_id is not None:
            async with session() as conn:
                await data_objects.use(conn, table_ids, self._job_id)

    async def keep(self, table_ids: Sequence[int]) -> None:
        async with session() as conn:
            await data_objects.keep(conn, table_ids)

    async def expired(self) -> Sequence[int]:
        async with session() as conn:
            return await data_objects.expired(conn, self._location)

    async def expire(self, table_ids: Sequence[int]) -> None:
        async with session() as conn:
            await data_objects.expire(conn, table_ids)

    async def forget(self, table_ids: Sequence[int]) -> None:
        async with session() as conn:
            await data_objects.forget(conn, table_ids)


class DataContext(BaseContext):
    """`async with DataContext():` opens the tables of the settings, or those of another URL.

    Temporary tables are dropped at its end. Others have an entry in the database and are found again by their names.
    """

    def __init__(self, url: str | None = None, *, scope: Scope | str = Scope.TEMP) -> None:
        settings = load_settings()
        url = url or data_url(settings)
        super().__init__(url, catalog=DatabaseCatalog(location_of(url)), scope=scope, limits=limits_of(settings))
        self.fetch = fetched


@asynccontextmanager
async def fetched(url: str) -> AsyncIterator[Path]:
    """The file on this machine, as long as it is needed. Raises ReferenceRefused."""
    storage = open_storage(load_settings())
    location = storage.locate(url)
    if isinstance(location, LocalFile):
        yield storage.local_path(url)
        return
    with NamedTemporaryFile() as file:
        async for chunk in storage.read(url):
            await asyncio.to_thread(file.write, chunk)
        file.flush()
        yield Path(file.name)


def context_of_task(job_id: int, task_id: str) -> BaseContext:
    """The engine stays open for the next task of this process."""
    settings = load_settings()
    url, limits = data_url(settings), limits_of(settings)
    with _holding:
        if url not in _held:
            _held[url] = open_engine(url, limits)
    catalog = DatabaseCatalog(location_of(url), job_id, task_id, limits.tables)
    context = BaseContext(url, catalog=catalog, limits=limits)
    context.appender, context.fetch = task_id.rpartition("_")[0], fetched
    return context


def release_engines() -> None:
    """Close what stays open between tasks, so that another process can open it."""
    with _holding:
        while _held:
            _, engine = _held.popitem()
            engine.close()


_held: dict[str, Engine] = {}
_holding = Lock()
atexit.register(release_engines)
