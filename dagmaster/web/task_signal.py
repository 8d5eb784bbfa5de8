"""Wakes workers that wait over HTTP when there may be tasks."""

import asyncio
from contextlib import suppress

from dagmaster.store.notifications import TASKS, listen

AT_ONCE = 2


class TaskSignal:
    """Listens from the first waiter on."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._next = asyncio.Event()
        self._listener: asyncio.Task[None] | None = None
        # However many workers are woken, other requests still get a connection.
        self.turns = asyncio.Semaphore(AT_ONCE)

    def next(self) -> asyncio.Event:
        """Set when there may be tasks. Get it before you look for tasks, so that none is missed."""
        if self._listener is None or self._listener.done():
            self._listener = asyncio.create_task(listen(self._dsn, {TASKS: self.ring}))
        return self._next

    def ring(self) -> None:
        rung, self._next = self._next, asyncio.Event()
        rung.set()

    async def close(self) -> None:
        if self._listener is not None:
            self._listener.cancel()
            with suppress(asyncio.CancelledError):
                await self._listener
