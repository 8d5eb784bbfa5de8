"""Wake-ups through LISTEN and NOTIFY: hints that shorten the wait for the next poll. Nothing depends on them."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from time import monotonic
from typing import LiteralString

import psycopg

from dagmaster.errors import DatabaseUnavailable
from dagmaster.store.connect import LOST, Connection, connect

log = logging.getLogger(__name__)

MAIL: LiteralString = "dagmaster_mail"
TASKS: LiteralString = "dagmaster_tasks"
RELOAD: LiteralString = "dagmaster_reload"

# A notification in every commit would serialise the commits of all processes, so piggybacking is rate-limited.
PIGGYBACK_INTERVAL_SECONDS = 0.001
MIN_INTERVAL_SECONDS = 0.003
NOT_URGENT_SECONDS = 0.05
RECONNECT_SECONDS = 1.0


class Notifier:
    """Sends and receives notifications on one connection. Sending is limited to once in a few milliseconds; received
    notifications are passed on at once.
    """

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._calls: dict[str, Callable[[], None]] = {}
        self._due: set[str] = set()
        self._last_piggyback = 0.0
        self._next_send = 0.0
        self._wake = asyncio.Event()
        self._lost: psycopg.Error | None = None

    def on(self, channel: str, call: Callable[[], None]) -> None:
        """Call this function when the channel is notified."""
        self._calls[channel] = call
        self._wake.set()

    def notify(self, channel: str, *, urgent: bool = True) -> None:
        """A notification that is not urgent waits a little for an urgent one."""
        self._due.add(channel)
        if urgent:
            self._wake.set()
        else:
            asyncio.get_running_loop().call_later(NOT_URGENT_SECONDS, self._wake_if_due)

    def can_piggyback(self) -> bool:
        """Whether the caller's next commit may carry a notification itself, which is the fastest way."""
        now = monotonic()
        if now - self._last_piggyback < PIGGYBACK_INTERVAL_SECONDS:
            return False
        self._last_piggyback = now
        return True

    def _wake_if_due(self) -> None:
        if self._due:
            self._wake.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                conn = await connect(self._dsn, application="dagmaster signals", durable=False)
                async with conn:
                    await self._serve(conn)
            except (*LOST, DatabaseUnavailable) as error:
                log.debug("the notifier lost its connection: %s", error)
                await asyncio.sleep(RECONNECT_SECONDS)

    async def _serve(self, conn: Connection) -> None:
        conn.add_notify_handler(lambda notification: self._calls[notification.channel]())
        listening: set[str] = set()
        self._lost = None
        while True:
            for channel in self._calls.keys() - listening:
                await conn.execute(f"LISTEN {channel}")
                listening.add(channel)
                self._calls[channel]()  # Notifications before LISTEN were missed.
            await self._send(conn)
            await self._rest(conn)

    async def _send(self, conn: Connection) -> None:
        if not self._due:
            return
        now = monotonic()
        if now < self._next_send:
            asyncio.get_running_loop().call_later(self._next_send - now, self._wake_if_due)
            return
        due, self._due = self._due, set()
        for channel in due:
            await conn.execute(f"NOTIFY {channel}")
        self._next_send = monotonic() + MIN_INTERVAL_SECONDS

    async def _rest(self, conn: Connection) -> None:
        """Wait for work, and read notifications as they arrive."""
        self._pass_on(conn)  # The last response may have brought notifications.
        loop = asyncio.get_running_loop()
        # Remember the socket: a broken connection no longer knows it.
        socket = conn.fileno()
        loop.add_reader(socket, self._read, conn)
        try:
            await self._wake.wait()
        finally:
            loop.remove_reader(socket)
        self._wake.clear()
        if self._lost is not None:
            raise self._lost

    def _read(self, conn: Connection) -> None:
        try:
            conn.pgconn.consume_input()
        except psycopg.Error as error:
            self._lost = error
            self._wake.set()
            return
        self._pass_on(conn)

    def _pass_on(self, conn: Connection) -> None:
        while (notification := conn.pgconn.notifies()) is not None:
            self._calls[notification.relname.decode()]()


async def listen(dsn: str, calls: Mapping[str, Callable[[], None]]) -> None:
    """Call the function of each channel when it is notified, until cancelled."""
    notifier = Notifier(dsn)
    for channel, call in calls.items():
        notifier.on(channel, call)
    await notifier.run()
