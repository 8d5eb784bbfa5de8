"""An engine that is opened on first use, and the threads that run its statements."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from dagmaster.data.engine import Engine, Limits, Ticket, open_engine, use_ticket
from dagmaster.errors import QueryCancelled

T = TypeVar("T")

CANCELLED_POLL_SECONDS = 0.25
KILL_AGAIN_SECONDS = 0.2


class EngineRunner:
    def __init__(self, url: str, limits: Limits) -> None:
        self.url = url
        self.limits = limits
        # Set when the caller of this thread was cancelled: threads cannot be stopped, their queries can.
        self.cancelled: threading.Event | None = None
        self._engine: Engine | None = None
        self._opening = threading.Lock()

    async def release(self) -> None:
        """Release the engine, and leave the tables as they are."""
        engine, self._engine = self._engine, None
        if engine is not None:
            await self.run(engine.close)

    async def run(self, work: Callable[[], T]) -> T:
        """Run in a thread, because the engine blocks. If the task is cancelled, its queries are killed."""
        ticket = Ticket()

        def ticketed() -> T:
            use_ticket(ticket)
            return work()

        running = asyncio.ensure_future(asyncio.to_thread(ticketed))
        try:
            while not running.done():
                await asyncio.wait([running], timeout=CANCELLED_POLL_SECONDS if self.cancelled else None)
                if self.cancelled is not None and self.cancelled.is_set():
                    raise QueryCancelled
        except (asyncio.CancelledError, QueryCancelled):
            ticket.is_cancelled = True
            await asyncio.shield(self._killed(ticket, running))
            raise
        return running.result()

    async def _killed(self, ticket: Ticket, running: "asyncio.Future[Any]") -> None:
        """Repeat until it has ended: a query that the engine does not know yet cannot be killed."""
        while not running.done():
            if self._engine is not None:
                await asyncio.to_thread(self._engine.kill, ticket.query_id)
            await asyncio.wait([running], timeout=KILL_AGAIN_SECONDS)
        running.exception()  # Retrieved: nothing awaits it.

    @property
    def engine(self) -> Engine:
        return self.opened()

    def opened(self) -> Engine:
        with self._opening:
            if self._engine is None:
                self._engine = open_engine(self.url, self.limits)
            return self._engine
