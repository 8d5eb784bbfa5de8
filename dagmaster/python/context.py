"""The database of the jobs API: one pool per event loop, closed with its last user."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Self, TypeVar
from weakref import WeakKeyDictionary

from dagmaster import python
from dagmaster.errors import Conflict
from dagmaster.handlers.current import find_current_task
from dagmaster.python.graphs import Item
from dagmaster.settings import load_settings
from dagmaster.store.connect import Connection, Pool, open_pool, opened
from dagmaster.store.databases import database
from dagmaster.store.schema import check_schema

Applied = TypeVar("Applied", bound=Item | Sequence[Item])

APPLICATION = "dagmaster python"
POOL_SIZE = 4
STATEMENT_TIMEOUT_SECONDS = 60.0


class OrchContext:
    """`async with OrchContext():` keeps the connections open between calls of the jobs API.

    The database is that of the settings, unless a URL is passed. The context is bound to `job_id` or, inside a running
    task, to the task's job.
    """

    def __init__(self, database_url: str | None = None, *, job_id: int | None = None) -> None:
        self.database_url = database_url
        self._job_id = job_id
        self._stack: AsyncExitStack | None = None

    @property
    def job_id(self) -> int | None:
        """The job that the context is bound to, if any."""
        if self._job_id is not None:
            return self._job_id
        task = find_current_task()
        return task.job_id if task is not None else None

    async def apply(self, items: Applied, job_id: int | None = None) -> Applied:
        """Like the function `apply`, by default for the job of the context."""
        return await python.apply_items.apply(items, job_id or self.job_id)

    async def __aenter__(self) -> Self:
        if self._stack is not None:
            raise Conflict("this OrchContext is already open; create another one")
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(_pool(self.database_url))
            stack.callback(_current.reset, _current.set(self))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *error: object) -> None:
        assert self._stack is not None
        stack, self._stack = self._stack, None
        await stack.aclose()


_current: ContextVar[OrchContext | None] = ContextVar("dagmaster_context", default=None)


def find_context() -> OrchContext | None:
    """The open context, if any."""
    return _current.get()


def get_current_context() -> OrchContext:
    """The open context, or one for the job of the running task."""
    context = _current.get()
    if context is None and find_current_task() is not None:
        return OrchContext()
    if context is None:
        raise Conflict("no context is open here; use `async with OrchContext():`")
    return context


@asynccontextmanager
async def session() -> AsyncIterator[Connection]:
    """A connection for one operation. Without an open context, the pool lives only for the operation."""
    context = _current.get()
    async with _pool(context.database_url if context else None) as pool, pool.connection() as conn:
        yield conn


@dataclass(slots=True)
class _Shared:
    """`opening` completes when the pool is open; later users wait for it."""

    opening: asyncio.Task[tuple[Pool, AsyncExitStack]]
    users: int = 0


_shared: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str | None, _Shared]] = WeakKeyDictionary()


@asynccontextmanager
async def _pool(database_url: str | None) -> AsyncIterator[Pool]:
    pools = _shared.setdefault(asyncio.get_running_loop(), {})
    shared = pools.get(database_url)
    if shared is None:
        shared = pools[database_url] = _Shared(asyncio.ensure_future(_open(database_url)))
    shared.users += 1
    try:
        pool, _ = await asyncio.shield(shared.opening)
        yield pool
    finally:
        shared.users -= 1
        if shared.users == 0:
            del pools[database_url]
            await _close(shared)


async def _open(database_url: str | None) -> tuple[Pool, AsyncExitStack]:
    async with AsyncExitStack() as stack:
        dsn = await _check(database_url) if database_url else await _database_of_settings(stack)
        pool = await open_pool(
            dsn, application=APPLICATION, size=POOL_SIZE, statement_timeout_seconds=STATEMENT_TIMEOUT_SECONDS
        )
        stack.push_async_callback(pool.close)
        return pool, stack.pop_all()


async def _check(database_url: str) -> str:
    """Check the URL first: a pool would retry for a while and then hide the reason."""
    async with opened(database_url, application=APPLICATION) as conn:
        await check_schema(conn)
    return database_url


async def _close(shared: _Shared) -> None:
    if not shared.opening.done():
        shared.opening.cancel()
        await asyncio.wait([shared.opening])
    if not shared.opening.cancelled() and shared.opening.exception() is None:
        await shared.opening.result()[1].aclose()


async def _database_of_settings(stack: AsyncExitStack) -> str:
    """In a thread: without a URL it is the embedded server, which may have to be started."""
    blocking = ExitStack()
    dsn = await asyncio.to_thread(blocking.enter_context, database(load_settings()))
    stack.push_async_callback(asyncio.to_thread, blocking.close)
    return dsn
