"""Durable workflows on PostgreSQL. This is what the author of a handler needs, and a program that submits jobs."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dagmaster.client import AsyncClient, Client
    from dagmaster.handlers import (
        Checkpoint,
        Context,
        HandlerContext,
        HandlerResult,
        Interrupted,
        Permanent,
        Retry,
        handler,
        register_handler,
    )

    __version__: str

__all__ = [
    "AsyncClient",
    "Checkpoint",
    "Client",
    "Context",
    "HandlerContext",
    "HandlerResult",
    "Interrupted",
    "Permanent",
    "Retry",
    "handler",
    "register_handler",
]
CLIENTS = ("AsyncClient", "Client")


def __getattr__(name: str) -> Any:
    # Loaded when asked for: every command begins by importing this module, and few of them need any of it.
    if name == "__version__":
        return importlib.import_module("importlib.metadata").version("dagmaster")
    if name in __all__:
        module = "dagmaster.client" if name in CLIENTS else "dagmaster.handlers"
        return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
