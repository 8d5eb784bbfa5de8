"""Live timelines: one reader of the database for all watchers."""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import datetime, timedelta
from time import monotonic
from typing import Any

from fastapi import WebSocket, WebSocketDisconnect

from dagmaster.errors import Unavailable
from dagmaster.ids import JobId
from dagmaster.model.states import JOB_TERMINAL
from dagmaster.store.connect import AWAY, Pool
from dagmaster.store.events import NewEvents, Position, watched_events

log = logging.getLogger(__name__)

POLL_SECONDS = 0.2
RETRY_SECONDS = 1.0
# Ids are assigned before commit, so an event with a smaller id may appear later, within this time.
WINDOW_SECONDS = 2.0
MAX_SEEN = 4000
PAGE = 500
QUEUE_SIZE = 2 * PAGE
MAX_WATCHERS = 1000
SLOW_SECONDS = 30.0
NOTICE_SECONDS = 0.5
SLACK = timedelta(minutes=1)

Row = dict[str, Any]


class Watcher:
    """A watcher of a job. Its queue is bounded; while it is full, nothing is read for it."""

    def __init__(self, job_id: JobId, after: int, created_at: datetime) -> None:
        self.queue: asyncio.Queue[Row] = asyncio.Queue(QUEUE_SIZE)
        self.is_over = self.is_slow = False
        self._job_id, self._after, self._since = job_id, after, created_at - SLACK
        self._seen: dict[int, float] = {}
        self._news = asyncio.Event()
        self._had_room_at = monotonic()

    @property
    def has_room(self) -> bool:
        return self.queue.qsize() <= QUEUE_SIZE - PAGE

    @property
    def is_done(self) -> bool:
        return self.queue.empty() and (self.is_over or self.is_slow)

    async def next(self) -> Row | None:
        """The next event; None after a while without one, or at the end."""
        if self.queue.empty() and not self.is_done:
            self._news.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), NOTICE_SECONDS)
        return None if self.queue.empty() else self.queue.get_nowait()

    def position(self) -> Position:
        return Position(self._job_id, self._after, self._since, list(self._seen))

    def take(self, news: NewEvents, asked_at: float) -> None:
        for event in news.events:
            self._seen[event["event_id"]] = asked_at
            self.queue.put_nowait(event)
        self._settle(asked_at)
        # The end is written together with the engine's last event, so everything was read with it.
        self.is_over = not news.is_full and (news.job_status is None or news.job_status in JOB_TERMINAL)
        if news.events or self.is_over:
            self._news.set()

    def _settle(self, asked_at: float) -> None:
        """Advance the start past events seen a while ago: no older ones will appear."""
        ids = sorted(self._seen)
        old = [event_id for event_id in ids if self._seen[event_id] <= asked_at - WINDOW_SECONDS] + ids[
            : max(len(ids) - MAX_SEEN, 0)
        ]
        if old:
            self._after = max(old)
            self._seen = {event_id: at for event_id, at in self._seen.items() if event_id > self._after}

    def check_pace(self) -> None:
        now = monotonic()
        if self.has_room:
            self._had_room_at = now
        elif now - self._had_room_at > SLOW_SECONDS:
            self.is_slow = True


class Streams:
    def __init__(self, pool: Pool, is_stopping: Callable[[], bool]) -> None:
        self._pool, self._is_stopping = pool, is_stopping
        self._watchers: set[Watcher] = set()
        self._reader: asyncio.Task[None] | None = None

    async def events(
        self, job_id: JobId, after: int, created_at: datetime, *, heartbeat_seconds: float
    ) -> AsyncGenerator[Row | None, None]:
        """Every event after `after` until the job has ended; None as a keep-alive. Raises Unavailable if the watcher is
        too slow, or if there are too many."""
        with self._watching(Watcher(job_id, after, created_at)) as watcher:
            quiet_since = monotonic()
            while not self._is_stopping():
                event = await watcher.next()
                if event is None and watcher.is_done:
                    break
                if event is None and monotonic() - quiet_since < heartbeat_seconds:
                    continue
                quiet_since = monotonic()
                yield event
            if watcher.is_slow:
                raise Unavailable("the events were not read fast enough; continue after the last event")

    @contextmanager
    def _watching(self, watcher: Watcher) -> Iterator[Watcher]:
        if len(self._watchers) >= MAX_WATCHERS:
            raise Unavailable(f"too many watchers ({MAX_WATCHERS}); try again later")
        self._watchers.add(watcher)
        if self._reader is None or self._reader.done():
            self._reader = asyncio.create_task(self._read())
        try:
            yield watcher
        finally:
            self._watchers.discard(watcher)

    async def _read(self) -> None:
        """Runs while there is a watcher."""
        while self._watchers and not self._is_stopping():
            try:
                has_more = await self._read_once()
            except AWAY as error:
                # The position is kept: when the database is back, reading continues without a gap.
                log.warning("cannot read events for watchers, retrying: %s", str(error).partition("\n")[0])
                await asyncio.sleep(RETRY_SECONDS)
                continue
            await asyncio.sleep(0 if has_more else POLL_SECONDS)

    async def _read_once(self) -> bool:
        """Returns whether there is more to read."""
        for watcher in self._watchers:
            watcher.check_pace()
        asking = [
            watcher for watcher in self._watchers if watcher.has_room and not watcher.is_over and not watcher.is_slow
        ]
        if not asking:
            return False
        asked_at = monotonic()
        async with self._pool.connection() as conn:
            news = await watched_events(conn, [watcher.position() for watcher in asking], page=PAGE)
        for watcher, batch in zip(asking, news, strict=True):
            watcher.take(batch, asked_at)
        return any(batch.is_full for batch in news)


@asynccontextmanager
async def disconnection(socket: WebSocket) -> AsyncIterator[asyncio.Task[None]]:
    """A task that is done when the client has disconnected."""
    gone = asyncio.create_task(_until_gone(socket))
    try:
        yield gone
    finally:
        gone.cancel()
        with suppress(asyncio.CancelledError):
            await gone


async def _until_gone(socket: WebSocket) -> None:
    with suppress(WebSocketDisconnect):
        while True:
            await socket.receive_text()
