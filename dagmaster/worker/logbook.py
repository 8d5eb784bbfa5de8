"""The logs of running tasks: buffered in memory, stored about twice a second and when a task ends."""

import asyncio
import logging
from collections import Counter, deque

from dagmaster.ids import TaskId
from dagmaster.tasklogs.contract import LogUnavailable, LogWriter
from dagmaster.worker.capture import TaskLog

log = logging.getLogger(__name__)

FLUSH_SECONDS = 0.5
BACKLOG_BYTES = 64 * 1024 * 1024


class Logbook:
    """Failed writes are retried and never fail a task. Memory is bounded: output beyond the limit is left out, and the
    log says so.
    """

    def __init__(self, logs: LogWriter, max_bytes: int, *, backlog_bytes: int = BACKLOG_BYTES) -> None:
        self._logs, self._max_bytes = logs, max_bytes
        self._open: dict[TaskId, TaskLog] = {}
        self._backlog: deque[tuple[str, bytes]] = deque()
        self._room = backlog_bytes
        self._left_out: Counter[str] = Counter()
        self._storing = asyncio.Lock()
        self._complained = False

    def open(self, task_id: TaskId) -> TaskLog:
        opened = self._open[task_id] = TaskLog(self._max_bytes)
        return opened

    async def close(self, task_id: TaskId) -> str | None:
        """Store the rest; returns the path of the log, or None when nothing was written."""
        closing = self._open.pop(task_id)
        closing.finish()
        if not closing.total_bytes:
            return None
        self._put(task_id, closing)
        self._left_out.pop(task_id, None)
        await self._store()
        return self._logs.path_of(task_id)

    async def run(self) -> None:
        """Store logs until cancelled."""
        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            await self.flush()

    async def flush(self) -> None:
        for task_id, opened in list(self._open.items()):
            self._put(task_id, opened)
        await self._store()

    def _put(self, task_id: TaskId, opened: TaskLog) -> None:
        chunk = opened.take()
        if not chunk:
            return
        if len(chunk) > self._room:
            self._left_out[task_id] += len(chunk)
            return
        if left_out := self._left_out.pop(task_id, 0):
            note = f"[dagmaster: {left_out:,} bytes left out; they could not be stored in time]\n"
            chunk = note.encode() + chunk
        self._backlog.append((task_id, chunk))
        self._room -= len(chunk)

    async def _store(self) -> None:
        if self._backlog:
            # Shielded: a piece whose writer is cancelled may be stored nevertheless, and would be stored again.
            await asyncio.shield(self._store_backlog())

    async def _store_backlog(self) -> None:
        async with self._storing:  # Keeps pieces in order, and stores each once.
            while self._backlog:
                task_id, chunk = self._backlog[0]
                try:
                    await self._logs.append(task_id, chunk)
                except LogUnavailable as error:
                    self._warn(error)
                    return
                self._backlog.popleft()
                self._room += len(chunk)
                self._complained = False

    def _warn(self, error: LogUnavailable) -> None:
        if not self._complained:
            log.warning("cannot store task logs, retrying: %s", error)
        self._complained = True
