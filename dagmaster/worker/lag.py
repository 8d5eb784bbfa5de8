"""Detection of handlers that block the event loop, and with it everything in the process including the heartbeat."""

import asyncio
import logging
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

log = logging.getLogger(__name__)

TICK_SECONDS = 0.5
BLOCKED_SECONDS = 5.0
FRAMES_SHOWN = 6


class LoopWatch:
    """Checks from a thread of its own whether the loop is running."""

    def __init__(self, blocked_seconds: float = BLOCKED_SECONDS) -> None:
        self._blocked_seconds = blocked_seconds
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        self._turned_at = monotonic()
        self._ended = threading.Event()
        self._told_of: float | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        watcher = threading.Thread(target=self._watch, name="dagmaster-loop-watch", daemon=True)
        self._turn()
        watcher.start()
        try:
            yield
        finally:
            self._ended.set()
            watcher.join()

    def _turn(self) -> None:
        if not self._ended.is_set():
            self._turned_at = monotonic()
            self._loop.call_later(TICK_SECONDS, self._turn)

    def _watch(self) -> None:
        while not self._ended.wait(min(TICK_SECONDS, self._blocked_seconds / 4)):
            turned_at = self._turned_at
            if monotonic() - turned_at > self._blocked_seconds and self._told_of != turned_at:
                self._told_of = turned_at
                self._warn(monotonic() - turned_at)

    def _warn(self, seconds: float) -> None:
        frame = sys._current_frames().get(self._thread_id)
        where = "".join(traceback.format_stack(frame)[-FRAMES_SHOWN:]) if frame is not None else ""
        log.warning(
            "the event loop has been blocked for %.0f s, with every task and the heartbeat of this process; a handler "
            "that computes or blocks should be a plain function, or have isolation='thread' or 'process'. It is at:\n"
            "%s",
            seconds,
            where,
        )
