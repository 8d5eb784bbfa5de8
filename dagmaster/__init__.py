"""Durable workflows on PostgreSQL. This is what the author of a handler needs."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dagmaster.handlers import Context, HandlerContext, HandlerResult, Permanent, Retry, handler, register_handler

    __version__: str

__all__ = ["Context", "HandlerContext", "HandlerResult", "Permanent", "Retry", "handler", "register_handler"]


def __getattr__(name: str) -> Any:
    # Loaded when asked for: every command begins by importing this module, and few of them need a handler.
    if name == "__version__":
        return importlib.import_module("importlib.metadata").version("dagmaster")
    if name in __all__:
        return getattr(importlib.import_module("dagmaster.handlers"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
