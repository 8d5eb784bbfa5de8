"""Handlers in tests: collect them, and call one without a job."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dagmaster.errors import Conflict, Invalid
from dagmaster.handlers import Handler, HandlerContext, HandlerResult, Registry, call, load_handlers
from dagmaster.handlers import registry as default_registry
from dagmaster.handlers.futures import has_running_loop
from dagmaster.python.entrypoints import allow_modules
from dagmaster.python.runners import handler_for
from dagmaster.python.tasks import TaskFunction

HandlerSource = str | Path | Handler | TaskFunction[..., Any] | Callable[..., Any]


def call_handler(
    handler: str | Handler | Callable[..., Any], params: Mapping[str, Any] | None = None, **context: Any
) -> HandlerResult:
    """Run a handler as a worker would: parameters validated, errors turned into a result.

    `context` are further fields of HandlerContext, such as `retry_count` or `resumed_from`.
    """
    if has_running_loop():
        raise Conflict("call_handler() cannot be called in a running event loop; use `await acall_handler(...)`")
    return asyncio.run(acall_handler(handler, params, **context))


async def acall_handler(
    handler: str | Handler | Callable[..., Any], params: Mapping[str, Any] | None = None, **context: Any
) -> HandlerResult:
    """`call_handler` as a coroutine."""
    if isinstance(handler, str):
        load_handlers([])
        handler = default_registry.get(handler)
    entry = handler_of(handler)
    fields = {"task_id": "1_test_0", "job_id": 1, "node_id": "test", "worker_id": "test", **context}
    ctx = HandlerContext(handler=entry.name, params=dict(params or {}), **fields)
    return await call(entry, ctx, executor=None)


def handler_of(source: Handler | TaskFunction[..., Any] | Callable[..., Any]) -> Handler:
    """As registered; an unregistered function becomes a handler under its own name."""
    match source:
        case Handler():
            return source
        case TaskFunction():
            return default_registry.get(source.handler)
    registered = next((handler for handler in default_registry if handler.function is source), None)
    return registered or Handler(getattr(source, "__name__", ""), source)


def gather_handlers(
    specs: Sequence[str], task_modules: Sequence[str], sources: Iterable[Handler | Callable[..., Any]]
) -> dict[str, Handler]:
    """The imported handlers, those of these modules and files, and `sources`; later ones override earlier ones."""
    loaded = Registry()
    load_handlers(specs, loaded)
    allow_modules(task_modules, loaded)
    own = map(handler_of, sources)
    return {handler.name: handler for handlers in (default_registry, loaded, own) for handler in handlers}


def stand_in_for(task: str | TaskFunction[..., Any], stand_in: Any, original: Handler | None) -> Handler:
    """A function replaces the handler; it takes the context, or the arguments of the Python task.

    Any other value becomes the output.
    """
    if isinstance(task, TaskFunction):
        replacement = handler_for(stand_in if callable(stand_in) else lambda **_: stand_in, task.handler)
    elif callable(stand_in) or isinstance(stand_in, Mapping):
        replacement = Handler(task, stand_in if callable(stand_in) else lambda ctx: dict(stand_in))
    else:
        kind = type(stand_in).__name__
        raise Invalid(f"a handler's replacement must be a function or an output as a dict, not {kind}")
    if original is None:
        return replacement
    return replace(original, function=replacement.function, isolation="auto", memory_mb=None)
