"""The task that the current code runs in, for functions called deep inside a handler."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar

from dagmaster.handlers.contract import HandlerContext

_current: ContextVar[HandlerContext | None] = ContextVar("dagmaster_task", default=None)


def find_current_task() -> HandlerContext | None:
    """None outside handlers."""
    return _current.get()


@contextmanager
def working_on(ctx: HandlerContext) -> Iterator[None]:
    token = _current.set(ctx)
    try:
        yield
    finally:
        with suppress(ValueError):  # A dropped coroutine is closed in another context, which ends with it.
            _current.reset(token)
