"""Handlers: their contract, their registry, and how they are called."""

from dagmaster.handlers.contract import (
    Checkpoint,
    Context,
    HandlerContext,
    HandlerResult,
    Interrupted,
    Permanent,
    Retry,
)
from dagmaster.handlers.invocation import call, encode_output
from dagmaster.handlers.loader import load_handlers
from dagmaster.handlers.registry import Handler, Registry, handler, register_handler, registry

__all__ = [
    "Checkpoint",
    "Context",
    "Handler",
    "HandlerContext",
    "HandlerResult",
    "Interrupted",
    "Permanent",
    "Registry",
    "Retry",
    "call",
    "encode_output",
    "handler",
    "load_handlers",
    "register_handler",
    "registry",
]
