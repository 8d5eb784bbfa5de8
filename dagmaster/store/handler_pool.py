"""Connections that a worker lends to its handlers, opened on first use."""

import asyncio
import threading
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any

from psycopg import AsyncConnection, Connection
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from dagmaster.store.connect import Connection as StoreConnection
from dagmaster.store.connect import opened

APPLICATION = "dagmaster handler"
SIZE = 4
IDLE_SECONDS = 30.0

_KWARGS = {"application_name": APPLICATION, "connect_timeout": 10}


class HandlerPool:
    """`async with ctx.pool.connection() as conn:` in a coroutine, `with ...` in a plain function.

    A block is a transaction: committed at its end, rolled back if it raises.
    """

    def __init__(self, dsn: str, size: int = SIZE) -> None:
        self._dsn, self._size = dsn, size
        self._async: AsyncConnectionPool[AsyncConnection[Any]] | None = None
        self._sync: ConnectionPool[Connection[Any]] | None = None
        self._opening = threading.Lock()

    def connection(self, timeout: float = 30.0) -> "BorrowedConnection":
        """Borrow a connection for one block; others wait if none is free."""
        return BorrowedConnection(self, timeout)

    def store_connection(self) -> AbstractAsyncContextManager[StoreConnection]:
        """A connection for the functions of this package: async, autocommit, rows by name."""
        return opened(self._dsn, application=APPLICATION)

    async def close(self) -> None:
        if self._async is not None:
            await self._async.close()
        if self._sync is not None:
            await asyncio.to_thread(self._sync.close)
        self._async = self._sync = None

    async def opened_async(self) -> AsyncConnectionPool[AsyncConnection[Any]]:
        if self._async is None:
            self._async = AsyncConnectionPool(
                self._dsn, min_size=0, max_size=self._size, max_idle=IDLE_SECONDS, kwargs=_KWARGS, open=False
            )
            await self._async.open()
        return self._async

    def opened_sync(self) -> ConnectionPool[Connection[Any]]:
        with self._opening:
            if self._sync is None:
                self._sync = ConnectionPool(
                    self._dsn, min_size=0, max_size=self._size, max_idle=IDLE_SECONDS, kwargs=_KWARGS, open=True
                )
            return self._sync


class BorrowedConnection:
    """A connection for one block, in a coroutine or in a thread."""

    def __init__(self, pool: HandlerPool, timeout: float) -> None:
        self._pool, self._timeout = pool, timeout
        self._block: Any = None

    async def __aenter__(self) -> AsyncConnection[Any]:
        pool = await self._pool.opened_async()
        self._block = pool.connection(timeout=self._timeout)
        connection: AsyncConnection[Any] = await self._block.__aenter__()
        return connection

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._block.__aexit__(kind, error, trace)

    def __enter__(self) -> Connection[Any]:
        self._block = self._pool.opened_sync().connection(timeout=self._timeout)
        connection: Connection[Any] = self._block.__enter__()
        return connection

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._block.__exit__(kind, error, trace)
