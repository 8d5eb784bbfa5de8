"""Wake-ups through LISTEN and NOTIFY: hints that save waiting for the next poll. Nothing depends on them."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from time import monotonic
from typing import LiteralString

from dagmaster.errors import DatabaseUnavailable
from dagmaster.store.connect import LOST, Connection, connect

log = logging.getLogger(__name__)

MAIL: LiteralString = "dagmaster_mail"
TASKS: LiteralString = "dagmaster_tasks"

_LISTEN: Mapping[str, LiteralString] = {MAIL: "LISTEN dagmaster_mail", TASKS: "LISTEN dagmaster_tasks"}
_NOTIFY: Mapping[str, LiteralString] = {MAIL: "NOTIFY dagmaster_mail", TASKS: "NOTIFY dagmaster_tasks"}

# A notification in every commit would serialise the commits of all processes: one may ride along only now and then.
RIDE_INTERVAL_SECONDS = 0.004
MIN_INTERVAL_SECONDS = 0.003
NOT_URGENT_SECONDS = 0.05
RECONNECT_SECONDS = 1.0


class Notifier:
    """Sends what was asked for since the last time, at most once in a few milliseconds, on its own connection."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._due: set[str] = set()
        self._last_ride = 0.0
        self._wake = asyncio.Event()

    def notify(self, channel: str, *, urgent: bool = True) -> None:
        """What is not urgent waits a little for something that is."""
        self._due.add(channel)
        if urgent:
            self._wake.set()
        else:
            asyncio.get_running_loop().call_later(NOT_URGENT_SECONDS, self._wake_if_due)

    def may_ride(self) -> bool:
        """Whether the caller's next commit may carry a notification itself, which is the quickest way."""
        now = monotonic()
        if now - self._last_ride < RIDE_INTERVAL_SECONDS:
            return False
        self._last_ride = now
        return True

    def _wake_if_due(self) -> None:
        if self._due:
            self._wake.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                conn = await connect(self._dsn, application="dagmaster notifier", durable=False)
                async with conn:
                    await self._send(conn)
            except (*LOST, DatabaseUnavailable) as error:
                log.debug("notifier lost its connection: %s", error)
                await asyncio.sleep(RECONNECT_SECONDS)

    async def _send(self, conn: Connection) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            due, self._due = self._due, set()
            for channel in due:
                await conn.execute(_NOTIFY[channel])
            await asyncio.sleep(MIN_INTERVAL_SECONDS)


async def listen(dsn: str, calls: Mapping[str, Callable[[], None]]) -> None:
    """Call what belongs to each channel when it is notified, until cancelled."""
    while True:
        try:
            conn = await connect(dsn, application="dagmaster listener")
            async with conn:
                for channel in calls:
                    await conn.execute(_LISTEN[channel])
                for call in calls.values():  # What came before we listened.
                    call()
                async for notification in conn.notifies():
                    calls[notification.channel]()
        except (*LOST, DatabaseUnavailable) as error:
            log.debug("listener lost its connection: %s", error)
            await asyncio.sleep(RECONNECT_SECONDS)
