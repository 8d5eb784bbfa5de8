"""Protection of the worker's loop against handlers that block it, and against asyncio tasks that they start in it."""

import asyncio
import logging
import sys
import threading
import traceback
from collections.abc import Coroutine, Generator, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

from dagmaster.handlers.current import find_current_task

log = logging.getLogger(__name__)

TICK_SECONDS = 0.5
BLOCKED_SECONDS = 5.0
FRAMES_SHOWN = 6


@contextmanager
def surviving_handlers() -> Iterator[None]:
    """Turn SystemExit and KeyboardInterrupt in tasks of handlers into failures: they would end the loop."""
    loop = asyncio.get_running_loop()
    before = loop.get_task_factory()
    loop.set_task_factory(_make_task)
    try:
        yield
    finally:
        loop.set_task_factory(before)


def _make_task(
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any] | Generator[Any, None, Any], **options: Any
) -> "asyncio.Task[Any]":
    if find_current_task() is not None and isinstance(work, Coroutine):
        work = _Contained(work)
    return asyncio.Task(work, loop=loop, **options)


class _Contained(Coroutine[Any, Any, Any]):
    """An awaitable object: a wrapping coroutine that is cancelled before its first step would leave the inner one
    unawaited.
    """

    def __init__(self, work: Coroutine[Any, Any, Any]) -> None:
        self._work = work

    def send(self, value: Any) -> Any:
        with _contained():
            return self._work.send(value)

    def throw(self, *error: Any) -> Any:
        with _contained():
            return self._work.throw(*error)

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Generator[Any, None, Any]:
        return self._work.__await__()


class _contained:  # noqa: N801 - a context manager; contextlib's would fail on StopIteration
    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, SystemExit | KeyboardInterrupt):
            raise RuntimeError(f"a task of the handler raised {type(error).__name__}") from error


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
