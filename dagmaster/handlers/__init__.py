"""Handlers: what they are given and give back, which there are, and how one is called."""

from dagmaster.handlers.calling import call, encode_output
from dagmaster.handlers.contract import Context, HandlerContext, HandlerResult, Permanent, Retry
from dagmaster.handlers.loading import load_handlers
from dagmaster.handlers.registry import Handler, Registry, handler, register_handler, registry

__all__ = [
    "Context",
    "Handler",
    "HandlerContext",
    "HandlerResult",
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
