"""The connections of the chores, which most of them share in turns."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from psycopg.pq import TransactionStatus

from dagmaster.store.connect import READ_ONLY, Connection, connect


class SharedConnection:
    """Opened on first use and again after it was lost. Waiters are served in order."""

    def __init__(self, dsn: str, application: str, *, lock_timeout_seconds: float | None = None) -> None:
        self._dsn, self._application, self._lock_timeout_seconds = dsn, application, lock_timeout_seconds
        self._turn = asyncio.Lock()
        self._conn: Connection | None = None

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[Connection]:
        """Hold the connection for statements that belong together, and no longer: others wait for it."""
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
            except READ_ONLY:  # After a failover, the address may lead to another server.
                await self._drop(conn)
                raise
            finally:
                # An interrupted transaction must not reach the next chore.
                if conn.closed or conn.info.transaction_status is not TransactionStatus.IDLE:
                    await self._drop(conn)

    def takes(self, run_once: Callable[[Connection], Awaitable[float | None]]) -> Callable[[], Awaitable[float | None]]:
        """Run a chore on the shared connection."""

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


class Connections:
    """One for the lease alone, one for everything else."""

    def __init__(self, dsn: str, lock_timeout_seconds: float) -> None:
        self._dsn = dsn
        self.lease = SharedConnection(dsn, "dagmaster heartbeat")
        self.maintenance = SharedConnection(dsn, "dagmaster maintenance", lock_timeout_seconds=lock_timeout_seconds)

    def opens(self, run_once: Callable[[Connection], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
        """Run a chore that may take minutes on a connection of its own."""

        async def run() -> None:
            async with await connect(self._dsn, application="dagmaster maintenance", durable=False) as conn:
                await run_once(conn)

        return run

    async def close(self) -> None:
        await self.lease.close()
        await self.maintenance.close()
