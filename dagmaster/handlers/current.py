"""The task in which the running code was called, for what is called deep inside of a handler."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar

from dagmaster.handlers.contract import HandlerContext

_current: ContextVar[HandlerContext | None] = ContextVar("dagmaster_task", default=None)


def find_current_task() -> HandlerContext | None:
    """None outside of handlers."""
    return _current.get()


@contextmanager
def working_on(ctx: HandlerContext) -> Iterator[None]:
    token = _current.set(ctx)
    try:
        yield
    finally:
        with suppress(ValueError):  # A coroutine that is dropped is closed in another context, which ends with it.
            _current.reset(token)
