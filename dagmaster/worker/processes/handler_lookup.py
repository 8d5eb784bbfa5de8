"""Handlers in words that another process understands, and how it finds them again."""

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

from dagmaster.errors import Misconfigured, UnknownHandler
from dagmaster.handlers.contract import Permanent
from dagmaster.handlers.loader import load_handlers, loading
from dagmaster.handlers.registry import Handler, Registry


@dataclass(frozen=True, slots=True)
class Reference:
    """Where a handler's function and the model of its parameters are defined."""

    name: str
    module: str
    qualname: str
    file: str | None
    params: tuple[str, str] | None
    memory_mb: int | None


def refer_to(handler: Handler) -> Reference:
    function, params = handler.function, handler.params
    return Reference(
        handler.name,
        function.__module__,
        _qualname(function),
        _file(function),
        (params.__module__, params.__qualname__) if params else None,
        handler.memory_mb,
    )


def find(wanted: Reference, registry: Registry) -> Handler:
    """What was loaded under this name, or can be imported. Raises Permanent for what only its own process knows."""
    if (found := _registered(wanted, registry)) is not None:
        return found
    reason = ""
    if wanted.module != "__main__":
        try:
            _load(wanted, registry)
            return _registered(wanted, registry) or _imported(wanted)
        except (Misconfigured, AttributeError, ImportError) as error:
            reason = f" ({error})"
    raise Permanent(
        f"the handler {wanted.name!r} ({wanted.module}.{wanted.qualname}) cannot be found in a handler process"
        f"{reason}; define it at the top level of a module or file that is given with --handlers"
    )


def _registered(wanted: Reference, registry: Registry) -> Handler | None:
    try:
        known = registry.get(wanted.name)
    except UnknownHandler:
        return None
    function = known.function
    is_same_place = function.__module__ == wanted.module or (wanted.file is not None and _file(function) == wanted.file)
    return known if is_same_place and _qualname(function) == wanted.qualname else None


def _load(wanted: Reference, registry: Registry) -> None:
    try:
        with loading(wanted.module):
            importlib.import_module(wanted.module)
    except ModuleNotFoundError:
        if wanted.file is None:
            raise
        load_handlers([wanted.file], registry)
    except Exception as error:  # a module may raise anything while it is imported
        raise Misconfigured(f"{wanted.module} cannot be imported: {type(error).__name__}: {error}") from error


def _imported(wanted: Reference) -> Handler:
    params = _part(*wanted.params) if wanted.params else None
    function = _part(wanted.module, wanted.qualname)
    return Handler(wanted.name, function, params=params, isolation="process", memory_mb=wanted.memory_mb)


def _part(module: str, qualname: str) -> Any:
    return reduce(getattr, qualname.split("."), importlib.import_module(module))


def _qualname(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def _file(function: Callable[..., Any]) -> str | None:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return str(Path(code.co_filename).resolve()) if code else None
