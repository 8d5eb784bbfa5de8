"""Tasks, workflows and jobs in Python."""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dagmaster.python import apply_items, local, submission

__all__ = ["apply_items", "local", "submission"]


def __getattr__(name: str) -> ModuleType:
    # Loaded on first use: a worker imports workflow modules too, and needs neither an orchestrator nor a client.
    if name in __all__:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
