"""Run coroutines and asynchronous generators that need no event loop to their end."""

from collections.abc import AsyncGenerator, Coroutine, Iterator
from typing import Any, TypeVar

T = TypeVar("T")


def complete(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never suspends, such as one on a `BlockingTransport`."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    coroutine.close()
    raise RuntimeError("a coroutine for a blocking transport has waited for an event loop")


def iterate(generator: AsyncGenerator[T, None]) -> Iterator[T]:
    try:
        while True:
            try:
                item = complete(generator.asend(None))
            except StopAsyncIteration:
                return
            yield item
    finally:
        complete(generator.aclose())
