"""Tables of programs and tasks, with their entries in the database."""

import atexit
from collections.abc import Sequence
from threading import Lock

from dagmaster.data.catalog import NewTable, Scope, StoredTable
from dagmaster.data.engine import Engine, folder_url, open_engine
from dagmaster.data.objects import DataContext as BaseContext
from dagmaster.python.context import session
from dagmaster.settings import Settings, load_settings
from dagmaster.store import data_objects

FOLDER = "tables"


class DatabaseCatalog:
    """Entries in PostgreSQL of the tables of one engine, for a job's task or for a program."""

    def __init__(self, location: str, job_id: int | None = None, task_id: str | None = None) -> None:
        self._location, self._job_id, self._task_id = location, job_id, task_id

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
            )

    async def complete(self, table: StoredTable) -> None:
        async with session() as conn:
            await data_objects.complete(
                conn, table.table_id, row_count=table.rows, size_bytes=table.size_bytes, columns=table.columns
            )

    async def find(self, name: str, scope: Scope) -> int | None:
        async with session() as conn:
            return await data_objects.find_object(conn, name, scope, location=self._location, job_id=self._job_id)

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
        location = url or data_url(load_settings())
        super().__init__(location, catalog=DatabaseCatalog(location), scope=scope)


def data_url(settings: Settings) -> str:
    """Without a setting: ClickHouse in this process, in the data folder."""
    return settings.data_url or folder_url(settings.data_dir / FOLDER)


def context_of_task(job_id: int, task_id: str) -> BaseContext:
    """The engine stays open for the next task of this process."""
    url = data_url(load_settings())
    with _holding:
        if url not in _held:
            _held[url] = open_engine(url)
    return BaseContext(url, catalog=DatabaseCatalog(url, job_id, task_id))


def release_engines() -> None:
    """Close what stays open between tasks, so that another process can open it."""
    with _holding:
        while _held:
            _, engine = _held.popitem()
            engine.close()


_held: dict[str, Engine] = {}
_holding = Lock()
atexit.register(release_engines)
