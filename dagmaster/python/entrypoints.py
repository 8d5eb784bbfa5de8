"""Functions that workers may call by name: tasks, and functions of the modules that the settings allow."""

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from dagmaster.errors import Invalid, Misconfigured, UnknownHandler
from dagmaster.handlers import Registry, registry
from dagmaster.handlers.loader import make_importable
from dagmaster.model.contracts import ENTRY_POINT_MARK
from dagmaster.python.runners import handler_for
from dagmaster.python.signatures import module_of
from dagmaster.python.tasks import LAMBDA, LOCAL, TaskFunction

SUBMODULES = ".*"


def entry_point(callback: str | Callable[..., Any]) -> str:
    """The handler name of a task, a function or a string.

    A plain function is registered in this process; workers elsewhere need its module in `task_modules`.
    """
    if isinstance(callback, TaskFunction):
        return callback.handler
    if isinstance(callback, str):
        return _settled(callback)
    if not inspect.isfunction(callback) or LOCAL in callback.__qualname__ or callback.__name__ == LAMBDA:
        raise Invalid(f"{callback!r} cannot be called by name; use a module-level function, or @task")
    name = f"{module_of(callback)}{ENTRY_POINT_MARK}{callback.__qualname__}"
    if name not in registry.spellings():
        registry.register(handler_for(callback, name))
    return name


def allow_modules(patterns: Sequence[str], known: Registry = registry) -> None:
    """Let workers call the public functions of these modules; `package.*` covers all modules in it."""
    for module in [module for pattern in patterns for module in _modules(pattern)]:
        for function in _functions(module):
            name = f"{module.__name__}{ENTRY_POINT_MARK}{function.__name__}"
            if name not in known.spellings():
                known.register(handler_for(function, name))


def _settled(name: str) -> str:
    if not name.strip():
        raise Invalid("an entry point is the name of a function, such as package.module:function")
    try:
        return registry.get(name).name
    except UnknownHandler:
        return name  # Workers may know it.


def _modules(pattern: str) -> Iterator[ModuleType]:
    name = pattern.removesuffix(SUBMODULES)
    package = _import(name, pattern)
    yield package
    if pattern.endswith(SUBMODULES):
        for module in pkgutil.walk_packages(getattr(package, "__path__", ()), f"{name}."):
            if not module.name.endswith(".__main__"):
                yield _import(module.name, pattern)


def _import(name: str, pattern: str) -> ModuleType:
    make_importable(Path.cwd())
    try:
        return importlib.import_module(name)
    except (ImportError, ValueError, SyntaxError) as error:
        raise Misconfigured(f"task_modules contains {pattern!r}, but {name!r} cannot be imported: {error}") from error


def _functions(module: ModuleType) -> Iterator[Callable[..., Any]]:
    """The public functions defined in the module, except generators, which have no result."""
    for name, value in vars(module).items():
        if name.startswith("_") or not inspect.isfunction(value) or value.__module__ != module.__name__:
            continue
        if not inspect.isgeneratorfunction(value) and not inspect.isasyncgenfunction(value):
            yield value
