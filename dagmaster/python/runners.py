"""Handlers that call the functions of tasks."""

import inspect
from collections.abc import Callable
from typing import Any

from dagmaster.errors import Conflict
from dagmaster.handlers import Handler, HandlerContext
from dagmaster.model.added import RESULT_OF
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
            async with TaskTables(ctx.job_id, ctx.task_id, ctx.cancelled) as tables:
                args, kwargs = signature.read(ctx.params, ctx.logger.warning)
                output = _output(await function(*args, **kwargs), signature)
                await tables.keep_passed()
                return output
    else:

        def run(ctx: HandlerContext) -> dict[str, Any]:  # type: ignore[misc]
            with TaskTables(ctx.job_id, ctx.task_id, ctx.cancelled) as tables:
                args, kwargs = signature.read(ctx.params, ctx.logger.warning)
                output = _output(function(*args, **kwargs), signature)
                tables.keep_passed_sync()
                return output

    # Named like the function, for other processes and messages, but with the signature of a handler.
    run.__module__, run.__name__, run.__qualname__ = module_of(function), function.__name__, function.__qualname__
    run.__wrapped__ = function  # type: ignore[attr-defined]
    run.__signature__ = inspect.Signature([Kind("ctx", Kind.POSITIONAL_ONLY)])  # type: ignore[attr-defined]
    return run


def _output(value: Any, signature: Signature) -> dict[str, Any]:
    if not isinstance(value, Item):
        signature.check_result(value)
        return {"result": with_references(value)}
    if value.result.node_id is None:
        raise Conflict(f"the task returns {value}, which was not applied; `await apply(...)` it before")
    return {RESULT_OF: value.result.node_id}
