"""Durable workflows on PostgreSQL. This is what the author of a handler needs."""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dagmaster.handlers import Context, HandlerContext, HandlerResult, Permanent, Retry, handler, register_handler

__all__ = ["Context", "HandlerContext", "HandlerResult", "Permanent", "Retry", "handler", "register_handler"]
__version__ = version("dagmaster")


def __getattr__(name: str) -> Any:
    # Loaded when asked for: every command of the command line begins by importing this module.
    if name in __all__:
        return getattr(import_module("dagmaster.handlers"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
