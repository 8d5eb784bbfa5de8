"""One connection for one command."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TypeVar

from dagmaster.errors import DatabaseUnavailable, Misconfigured, NotFound
from dagmaster.settings import Settings
from dagmaster.store.connect import LOST, Connection, opened
from dagmaster.store.databases import database
from dagmaster.store.embedded import EmbeddedServer

T = TypeVar("T")


@asynccontextmanager
async def session(dsn: str) -> AsyncIterator[Connection]:
    try:
        async with opened(dsn, application="dagmaster cli") as conn:
            yield conn
    except LOST as error:
        raise DatabaseUnavailable(
            f"lost the connection to the database: {str(error).strip().splitlines()[0]}"
        ) from error


def check_named(settings: Settings) -> None:
    """Raises Misconfigured if only a server is configured: the embedded database of this machine is not meant."""
    if settings.url and settings.database_dsn() is None and "data_dir" not in settings.model_fields_set:
        raise Misconfigured(
            f"this command needs the database, not the server at {settings.url}: set --database-url or --data-dir"
        )


@contextmanager
def existing_database(settings: Settings) -> Iterator[str]:
    """The DSN of the configured database. Does not create an embedded one."""
    check_named(settings)
    if settings.database_dsn() is None and not EmbeddedServer(settings.data_dir).pgdata.exists():
        raise NotFound(
            f"there are no jobs in {settings.data_dir} yet: run `dagmaster run` or `dagmaster dev`, or choose "
            "another folder with --data-dir"
        )
    with database(settings) as dsn:
        yield dsn


def run_in_session_at(dsn: str, work: Callable[[Connection], Awaitable[T]]) -> T:
    async def run() -> T:
        async with session(dsn) as conn:
            return await work(conn)

    return asyncio.run(run())


def run_in_session(settings: Settings, work: Callable[[Connection], Awaitable[T]]) -> T:
    """Call `work` with a connection to the configured database."""
    with existing_database(settings) as dsn:
        return run_in_session_at(dsn, work)
