"""The tables of a task: opened on first use, closed when the task ends."""

import asyncio
from contextlib import ExitStack
from importlib import import_module
from threading import Lock
from typing import TYPE_CHECKING, Any, Self

from dagmaster.data.current import using
from dagmaster.handlers import HandlerContext

if TYPE_CHECKING:
    from dagmaster.data.objects import DataContext


class TaskTables:
    """Temporary tables are dropped at the end of the task; those that it passes on become tables of the job."""

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
