"""Protection of the worker's loop against asyncio tasks that handlers start in it."""

import asyncio
from collections.abc import Coroutine, Generator, Iterator
from contextlib import contextmanager
from typing import Any

from dagmaster.handlers.current import find_current_task


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
