"""PostgreSQL: the statements, one module for each noun, and the migrations."""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dagmaster.store import ddl, migrate

__all__ = ["ddl", "migrate"]


def __getattr__(name: str) -> ModuleType:
    # Loaded on first use: SQLAlchemy and Alembic add 30 MB to a process, and few processes need them.
    if name in __all__:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
