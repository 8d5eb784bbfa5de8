"""Tables in ClickHouse as Python values: Objects and Views, passed between tasks by reference."""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dagmaster.data.catalog import Scope
    from dagmaster.data.current import get_data_context
    from dagmaster.data.expressions import Expression, call, col, lit
    from dagmaster.data.objects import DataContext, Object, View
    from dagmaster.data.references import Chunks, ObjectRef, ViewRef

# Before Arrow is loaded, which reads it once. Arrow's own allocator takes 4 MB for the first value, in every worker.
os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")

__all__ = [
    "Chunks",
    "DataContext",
    "Expression",
    "Object",
    "ObjectRef",
    "Scope",
    "View",
    "ViewRef",
    "call",
    "col",
    "get_data_context",
    "lit",
]
HOMES = {
    **dict.fromkeys(("DataContext", "Object", "View"), "objects"),
    **dict.fromkeys(("Expression", "call", "col", "lit"), "expressions"),
    **dict.fromkeys(("Chunks", "ObjectRef", "ViewRef"), "references"),
    "Scope": "catalog",
    "get_data_context": "current",
}


def __getattr__(name: str) -> Any:
    # Loaded on first use: references are part of the core, the table libraries are an extra.
    if name in HOMES:
        return getattr(import_module(f"{__name__}.{HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
