"""Wait in a loop for what happens in a thread."""

import asyncio
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def in_loop(future: Future[T]) -> asyncio.Future[T]:
    """The same outcome for a coroutine that may be cancelled, or weary, before it comes: then nobody asks for it."""
    outcome = asyncio.wrap_future(future)
    outcome.add_done_callback(_retrieve)
    return outcome


def _retrieve(outcome: asyncio.Future[T]) -> None:
    if not outcome.cancelled():
        outcome.exception()
