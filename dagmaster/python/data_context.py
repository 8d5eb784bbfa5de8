"""Tables of programs and tasks, with their entries in the database."""

import asyncio
import atexit
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import copy_context
from pathlib import Path
from tempfile import NamedTemporaryFile
from threading import Event, Lock, Thread

from dagmaster.data.catalog import NewTable, Scope, StoredTable
from dagmaster.data.configured import data_url, limits_of
from dagmaster.data.engine import Engine, location_of, open_engine
from dagmaster.data.objects import DataContext as BaseContext
from dagmaster.errors import DagmasterError
from dagmaster.python.context import session
from dagmaster.service.data_catalog import Attempt, DatabaseCatalog
from dagmaster.settings import load_settings
from dagmaster.snowflakes import new_id
from dagmaster.storage import LocalFile, open_storage
from dagmaster.store.connect import LOST
from dagmaster.store.data_objects import BEAT_SECONDS, beat_program, end_program

log = logging.getLogger(__name__)


class ProgramLease:
    """The lease of a program on its temporary and unfinished tables.

    Renewed in a thread, because a notebook may block its event loop for minutes.
    """

    def __init__(self) -> None:
        self.program_id = new_id()
        self._has_begun = False
        self._ended = Event()

    async def begin(self) -> None:
        """Start the renewal; later calls do nothing."""
        if self._has_begun:
            return
        await self._beat()
        if self._has_begun:
            return  # Another call has started it.
        self._has_begun = True
        # The caller's context names the database.
        Thread(target=copy_context().run, args=[self._renew], name="tables lease", daemon=True).start()

    async def end(self) -> None:
        if not self._has_begun:
            return
        self._ended.set()
        async with session() as conn:
            await end_program(conn, self.program_id)

    def _renew(self) -> None:
        while not self._ended.wait(BEAT_SECONDS):
            try:
                asyncio.run(self._beat())
            except (*LOST, DagmasterError) as error:
                log.warning("the lease on temporary tables was not renewed, trying again: %s", error)

    async def _beat(self) -> None:
        async with session() as conn:
            if not self._ended.is_set():
                await beat_program(conn, self.program_id)


class ProgramCatalog(DatabaseCatalog):
    """The catalogue of a program, which takes a lease with its first table."""

    def __init__(self, location: str, lease: ProgramLease) -> None:
        super().__init__(session, location, program_id=lease.program_id)
        self._lease = lease

    async def announce(self, table: NewTable) -> None:
        await self._lease.begin()
        await super().announce(table)

    async def add_inline(self, table: NewTable, stored: StoredTable, rows: bytes) -> None:
        await self._lease.begin()
        await super().add_inline(table, stored, rows)


class DataContext(BaseContext):
    """`async with DataContext():` opens the tables of the settings, or those of another URL.

    Temporary tables are dropped at its end, or some time after the death of the program. Other tables have an entry in
    the database and can be opened by name.
    """

    def __init__(self, url: str | None = None, *, scope: Scope | str = Scope.TEMP) -> None:
        settings = load_settings()
        url = url or data_url(settings)
        self._lease = ProgramLease()
        catalog = ProgramCatalog(location_of(url), self._lease)
        super().__init__(url, catalog=catalog, scope=scope, limits=limits_of(settings))
        self.fetch = fetched

    async def __aexit__(self, *error: object) -> None:
        try:
            await super().__aexit__(*error)
        finally:
            await self._lease.end()


class TaskContext(BaseContext):
    """The context of a task. Small tables need no engine; it is opened with the first statement."""

    @property
    def engine(self) -> Engine:
        with _holding:
            if self.url not in _held:
                _held[self.url] = open_engine(self.url, self.limits)
        return super().engine


@asynccontextmanager
async def fetched(url: str) -> AsyncIterator[Path]:
    """A local copy of the file within the block. Raises ReferenceRefused."""
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


def context_of_task(task: Attempt) -> BaseContext:
    """The engine stays open for the next task of this process."""
    settings = load_settings()
    url, limits = data_url(settings), limits_of(settings)
    catalog = DatabaseCatalog(session, location_of(url), attempt=task, max_tables=limits.tables)
    context = TaskContext(url, catalog=catalog, limits=limits)
    context.appender, context.fetch = f"{task.job_id}_{task.node_id}", fetched
    return context


def release_engines() -> None:
    """Close the engines that stay open between tasks, so that another process can open them."""
    with _holding:
        while _held:
            _, engine = _held.popitem()
            engine.close()


_held: dict[str, Engine] = {}
_holding = Lock()
atexit.register(release_engines)
