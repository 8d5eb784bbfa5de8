"""Tell open pages that something has changed: one reader of the database for all of them."""

import asyncio
import logging
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

from fastapi import APIRouter, WebSocket, WebSocketDisconnect

from dagmaster.errors import DagmasterError, Unauthorized
from dagmaster.store.connect import AWAY, Connection, Pool
from dagmaster.store.events import count_changes, is_settled
from dagmaster.web.access import EVERYBODY, READING_OWN, caller_of
from dagmaster.web.services import services_of
from dagmaster.web.streams import disconnection

router = APIRouter(include_in_schema=False)
log = logging.getLogger(__name__)

POLL_SECONDS: Final = 1.0
BEAT_SECONDS: Final = 5.0
PATIENCE: Final = 5  # polls: a transaction that stays open longer has probably written no event
MAX_PAGES: Final = 1000
UNKNOWN: Final = -1


def beat_of(changes: int, *, is_quiet: bool) -> int:
    """Increases with each change, and once more when no transaction is open.

    An id is assigned before its event is visible, so a reader may read too early.
    """
    return 2 * changes + is_quiet


async def beat_now(conn: Connection) -> int:
    """The beat of a page: data read after this is at least as new, so the page need not be refreshed for this beat."""
    changes = await count_changes(conn)  # Read first: later ids do not belong to this beat.
    return beat_of(changes, is_quiet=await is_settled(conn))


class ChangeFeed:
    """`beat` is the newest; None while the database is unavailable."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self.beat: int | None = UNKNOWN
        self.watchers = 0
        self._changed = asyncio.Condition()
        self._reader: asyncio.Task[None] | None = None

    async def next(self, seen: int | None) -> int | None:
        """The newest beat, once it differs from `seen`, or after a while."""
        if self._reader is None or self._reader.done():
            self._reader = asyncio.create_task(self._read())
        with suppress(TimeoutError):
            async with asyncio.timeout(BEAT_SECONDS), self._changed:
                await self._changed.wait_for(lambda: self.beat != seen)
        return self.beat

    async def _read(self) -> None:
        """Runs while a page is open."""
        newest, polls = None, 0
        while self.watchers:
            before, (newest, is_visible) = newest, await self._newest()
            polls = polls + 1 if newest == before else 0
            is_quiet = polls > 0 and (is_visible or polls >= PATIENCE)
            async with self._changed:
                self.beat = None if newest is None else beat_of(newest, is_quiet=is_quiet)
                self._changed.notify_all()
            await asyncio.sleep(POLL_SECONDS)
        self.beat = UNKNOWN

    async def _newest(self) -> tuple[int | None, bool]:
        """The number of changes, and whether all of them are visible."""
        try:
            async with self._pool.connection() as conn:
                return await count_changes(conn), await is_settled(conn)
        except AWAY as error:
            log.warning("cannot refresh open pages: %s", str(error).partition("\n")[0])
            return None, False


@router.websocket("/ws/live", dependencies=[EVERYBODY])
async def watch_all(socket: WebSocket) -> None:
    """`{"beat", "at"}` after each change, and regularly as a keep-alive."""
    await socket.accept()
    if (refusal := await _refusal(socket)) is not None:
        await socket.close(*refusal)
        return
    feed: ChangeFeed = socket.app.state.change_feed
    if feed.watchers >= MAX_PAGES:
        await socket.close(1013, f"too many open pages ({MAX_PAGES})")
        return
    async with disconnection(socket) as gone:
        await _send(socket, feed, gone)


async def _refusal(socket: WebSocket) -> tuple[int, str] | None:
    """The reason, and a code for the page: 4401 to sign in, 4403 to give up, 1013 to try again."""
    try:
        caller = await caller_of(socket, await services_of(socket))
    except Unauthorized as error:
        return 4401, str(error)[:100]
    except DagmasterError as error:
        return 4403, str(error)[:100]
    except AWAY:
        return 1013, "the database cannot be reached"
    return None if caller.role in READING_OWN else (4403, f"a key of role {caller.role} may not watch")


async def _send(socket: WebSocket, feed: ChangeFeed, gone: asyncio.Task[None]) -> None:
    feed.watchers += 1
    seen: int | None = UNKNOWN
    try:
        while await _is_due(beat := asyncio.create_task(feed.next(seen)), gone):
            seen = beat.result()
            # A key may have been revoked since.
            if seen is not None and (refusal := await _refusal(socket)) is not None and refusal[0] != 1013:
                await socket.close(*refusal)
                return
            await socket.send_json({"beat": seen, "at": datetime.now(UTC).isoformat()})
    except (WebSocketDisconnect, RuntimeError):  # It was closed during the write.
        return
    finally:
        feed.watchers -= 1


async def _is_due(beat: asyncio.Task[int | None], gone: asyncio.Task[None]) -> bool:
    """Wait for the beat; false if the page disconnects or the server stops."""
    try:
        await asyncio.wait([beat, gone], return_when=asyncio.FIRST_COMPLETED)
    finally:
        beat.cancel()  # No effect if the beat has arrived.
    return not gone.done()
