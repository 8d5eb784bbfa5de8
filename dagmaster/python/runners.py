"""Handlers that call the functions of tasks."""

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dagmaster.data.references import Referable
from dagmaster.errors import Conflict
from dagmaster.handlers import Handler, HandlerContext
from dagmaster.model.added_nodes import RESULT_OF
from dagmaster.python.graphs import Item
from dagmaster.python.signatures import Kind, Signature, module_of
from dagmaster.python.task_tables import TaskTables
from dagmaster.python.values import with_references


def handler_for(function: Callable[..., Any], name: str, **options: Any) -> Handler:
    """A handler that calls the function with the task's parameters, and whose output is `{"result": value}`."""
    signature = Signature(function)
    return Handler(name, runner_of(function, signature), schema=signature.schema, **options)


def runner_of(function: Callable[..., Any], signature: Signature) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(function):

        async def run(ctx: HandlerContext) -> dict[str, Any]:
            async with TaskTables(ctx) as tables:
                args, kwargs = signature.read(ctx.params, ctx.logger.warning)
                if signature.arrow_parameters:
                    kwargs = await _collected(kwargs, signature.arrow_parameters)
                value = await function(*args, **kwargs)
                output = _output(await _stored(value, tables) if _is_arrow(value) else value, signature)
                await tables.keep_passed()
                return output
    else:

        def run(ctx: HandlerContext) -> dict[str, Any]:  # type: ignore[misc]
            with TaskTables(ctx) as tables:
                args, kwargs = signature.read(ctx.params, ctx.logger.warning)
                if signature.arrow_parameters:
                    kwargs = asyncio.run(_collected(kwargs, signature.arrow_parameters))
                value = function(*args, **kwargs)
                output = _output(asyncio.run(_stored(value, tables)) if _is_arrow(value) else value, signature)
                tables.keep_passed_sync()
                return output

    # Named like the function, for other processes and messages, but with the signature of a handler.
    run.__module__, run.__name__, run.__qualname__ = module_of(function), function.__name__, function.__qualname__
    run.__wrapped__ = function  # type: ignore[attr-defined]
    run.__signature__ = inspect.Signature([Kind("ctx", Kind.POSITIONAL_ONLY)])  # type: ignore[attr-defined]
    return run


async def _collected(kwargs: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Replace tables by Arrow tables for parameters annotated as such."""
    return {
        name: await value.collect() if name in names and isinstance(value, Referable) else value
        for name, value in kwargs.items()
    }


def _is_arrow(value: Any) -> bool:
    """Whether the value is Arrow data, a Polars or a pandas frame, which JSON cannot represent."""
    return hasattr(value, "__arrow_c_stream__")


async def _stored(value: Any, tables: TaskTables) -> Referable:
    return await tables.opened().create_object_from_value(value)


def _output(value: Any, signature: Signature) -> dict[str, Any]:
    if not isinstance(value, Item):
        signature.check_result(value)
        return {"result": with_references(value)}
    if value.result.node_id is None:
        raise Conflict(f"the task returns {value}, which is not applied; call `await apply(...)` first")
    return {RESULT_OF: value.result.node_id}
