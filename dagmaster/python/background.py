"""An event loop in its own thread, for programs without a loop or with a busy one."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from dagmaster.errors import Conflict

T = TypeVar("T")


class Background:
    """The thread enters the context `around` before its loop runs, and leaves it after."""

    def __init__(self, around: Callable[[], AbstractContextManager[T]], name: str) -> None:
        self._around = around
        self._started: Future[T] = Future()
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None

    def start(self) -> Any:
        """Start the thread; returns the value of `around`, or raises its error."""
        self._thread.start()
        return self._started.result()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def call(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        """Run the coroutine in the loop and wait for it. Raises Conflict inside the loop: it would wait for itself."""
        if threading.current_thread() is self._thread:
            work.close()
            raise Conflict(
                "an async task cannot wait for a job of its own process; await the `*_async` variant elsewhere"
            )
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self) -> None:
        if self._loop is not None and self._stop is not None and self.is_alive:
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _main(self) -> None:
        try:
            with self._around() as resource:
                asyncio.run(self._run(resource))
        except BaseException as error:
            if self._started.done():
                raise
            self._started.set_exception(error)

    async def _run(self, resource: Any) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._started.set_result(resource)
        await self._stop.wait()
