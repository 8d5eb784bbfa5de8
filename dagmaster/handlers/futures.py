"""Bridges between threads and event loops."""

import asyncio
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def has_running_loop() -> bool:
    """Whether the caller is in a coroutine, which must not block."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def in_loop(future: Future[T]) -> asyncio.Future[T]:
    """An asyncio future with the same outcome. The outcome may be ignored when the coroutine stops waiting for it."""
    outcome = asyncio.wrap_future(future)
    outcome.add_done_callback(_retrieve)
    return outcome


def _retrieve(outcome: asyncio.Future[T]) -> None:
    if not outcome.cancelled():
        outcome.exception()
