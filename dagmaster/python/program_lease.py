"""The lease of a program on its temporary and unfinished tables."""

import asyncio
import logging
from contextvars import copy_context
from threading import Event, Thread

from dagmaster.errors import DagmasterError
from dagmaster.python.context import session
from dagmaster.snowflakes import new_id
from dagmaster.store.connect import LOST
from dagmaster.store.data_objects import BEAT_SECONDS, beat_program, end_program

log = logging.getLogger(__name__)


class ProgramLease:
    """Renewed in a thread, because a notebook may block its event loop for minutes."""

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
