"""References to handlers for another process, and how it finds them again."""

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


def find(reference: Reference, registry: Registry) -> Handler:
    """The handler, loaded or imported. Raises Permanent for one that exists only in its own process."""
    if (handler := _registered(reference, registry)) is not None:
        return handler
    reason = ""
    if reference.module != "__main__":
        try:
            _load(reference, registry)
            return _registered(reference, registry) or _imported(reference)
        except (Misconfigured, AttributeError, ImportError) as error:
            reason = f" ({error})"
    raise Permanent(
        f"the handler {reference.name!r} ({reference.module}.{reference.qualname}) cannot be found in a handler process"
        f"{reason}; define it at the top level of a module or file that is given with --handlers"
    )


def _registered(reference: Reference, registry: Registry) -> Handler | None:
    try:
        known = registry.get(reference.name)
    except UnknownHandler:
        return None
    function = known.function
    is_same_place = function.__module__ == reference.module or (
        reference.file is not None and _file(function) == reference.file
    )
    return known if is_same_place and _qualname(function) == reference.qualname else None


def _load(reference: Reference, registry: Registry) -> None:
    try:
        with loading(reference.module):
            importlib.import_module(reference.module)
    except ModuleNotFoundError:
        if reference.file is None:
            raise
        load_handlers([reference.file], registry)
    except Exception as error:  # A module may raise anything while it is imported.
        raise Misconfigured(f"{reference.module} cannot be imported: {type(error).__name__}: {error}") from error


def _imported(reference: Reference) -> Handler:
    params = _part(*reference.params) if reference.params else None
    function = _part(reference.module, reference.qualname)
    return Handler(reference.name, function, params=params, isolation="process", memory_mb=reference.memory_mb)


def _part(module: str, qualname: str) -> Any:
    return reduce(getattr, qualname.split("."), importlib.import_module(module))


def _qualname(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def _file(function: Callable[..., Any]) -> str | None:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return str(Path(code.co_filename).resolve()) if code else None
