"""A reload that one server receives happens on all servers of the fleet."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final

from dagmaster.errors import DagmasterError
from dagmaster.store.connect import AWAY, Connection
from dagmaster.store.notifications import RELOAD
from dagmaster.store.workflows import last_reload
from dagmaster.web.services import Services

POLL_SECONDS: Final = 5.0

log = logging.getLogger(__name__)


class Reloading:
    """The audit log decides; a notification only makes the next poll earlier."""

    def __init__(self, services: Services, forget: Callable[[], None]) -> None:
        self._services, self._forget = services, forget
        self._wake = asyncio.Event()
        self._seen: int | None = None

    async def run(self) -> None:
        """Runs until cancelled."""
        self._services.notifier.on(RELOAD, self._wake.set)
        while True:
            self._wake.clear()
            try:
                async with self._services.pool.connection() as conn:
                    await self.look(conn)
            except AWAY as error:
                log.debug("cannot check whether to reload the workflows: %s", error)
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_SECONDS):
                    await self._wake.wait()

    async def look(self, conn: Connection) -> None:
        """A reload that was requested before this server started is not repeated."""
        requested, first = await last_reload(conn), self._seen is None
        if first or requested == self._seen:
            self._seen = requested
            return
        try:
            await self._services.reload_workflows()
        except DagmasterError as error:
            log.warning("cannot reload the workflows: %s", error)
        self._services.definitions.forget_graphs()
        self._forget()
        self._seen = requested


@asynccontextmanager
async def reloading(services: Services, forget: Callable[[], None]) -> AsyncIterator[None]:
    task = asyncio.create_task(Reloading(services, forget).run())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
