"""One connection for many chores, which take turns on it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from psycopg.pq import TransactionStatus

from dagmaster.store.connect import READ_ONLY, Connection, connect


class SharedConnection:
    """Opened when it is first needed, and again after it was lost. Whoever waits is served in order."""

    def __init__(self, dsn: str, application: str, *, lock_timeout_seconds: float | None = None) -> None:
        self._dsn, self._application, self._lock_timeout_seconds = dsn, application, lock_timeout_seconds
        self._turn = asyncio.Lock()
        self._conn: Connection | None = None

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[Connection]:
        """Hold it for as long as statements belong together, and no longer: the others wait meanwhile."""
        async with self._turn:
            if self._conn is None:
                self._conn = await connect(
                    self._dsn,
                    application=self._application,
                    durable=False,
                    lock_timeout_seconds=self._lock_timeout_seconds,
                )
            conn = self._conn
            try:
                yield conn
            except READ_ONLY:  # The address may lead to another server by now.
                await self._drop(conn)
                raise
            finally:
                # What was interrupted half-way must not reach the next one.
                if conn.closed or conn.info.transaction_status is not TransactionStatus.IDLE:
                    await self._drop(conn)

    def takes(self, run_once: Callable[[Connection], Awaitable[float | None]]) -> Callable[[], Awaitable[float | None]]:
        """Run it in a turn of its own."""

        async def run() -> float | None:
            async with self.turn() as conn:
                return await run_once(conn)

        return run

    async def close(self) -> None:
        if self._conn is not None:
            await self._drop(self._conn)

    async def _drop(self, conn: Connection) -> None:
        self._conn = None
        await conn.close()
