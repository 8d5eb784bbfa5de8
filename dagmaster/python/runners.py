"""Handlers that call the functions of tasks, and the tables of these tasks."""

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from importlib import import_module
from threading import Lock
from typing import TYPE_CHECKING, Any, Self

from dagmaster.data.current import using
from dagmaster.data.references import Referable
from dagmaster.errors import Conflict
from dagmaster.handlers import Handler, HandlerContext
from dagmaster.model.added_nodes import RESULT_OF
from dagmaster.python.graphs import Item
from dagmaster.python.signatures import Kind, Signature, module_of
from dagmaster.python.values import with_references

if TYPE_CHECKING:
    from dagmaster.data.objects import DataContext


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


class TaskTables:
    """The tables of a task: opened on first use, closed when the task ends.

    Temporary tables are dropped at the end of the task; those that it passes on become tables of the job.
    """

    def __init__(self, task: HandlerContext) -> None:
        self._task = task
        self._received: list[Any] = []
        self._context: DataContext | None = None
        self._passed: list[Any] = []
        self._opening = Lock()
        self._stack = ExitStack()

    def opened(self) -> "DataContext":
        with self._opening:
            if self._context is None:
                # Loaded only for tasks that use tables: it imports Arrow and ClickHouse.
                module: Any = import_module("dagmaster.python.data_context")
                self._context = module.context_of_task(self._task)
                self._context.cancelled = self._task.cancelled
                for plan in self._received:
                    self._context.receive(plan)
            return self._context

    def receive(self, plan: Any) -> None:
        if self._context is not None:
            self._context.receive(plan)
        self._received.append(plan)

    def pass_on(self, plan: Any) -> None:
        self._passed.append(plan)

    async def keep_passed(self) -> None:
        if self._context is not None and self._passed:
            await self._context.keep(self._passed)
            self._passed.clear()

    def keep_passed_sync(self) -> None:
        if self._context is not None and self._passed:
            asyncio.run(self.keep_passed())

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, *error: object) -> None:
        self._stack.close()
        if self._context is not None:
            await self._context.close()

    def __enter__(self) -> Self:
        self._stack.enter_context(using(self))
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()
        if self._context is not None:
            asyncio.run(self._context.close())


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
