"""Injected faults: an attempt that fails, is delayed, or loses its worker."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from dagmaster.errors import Invalid
from dagmaster.handlers import Checkpoint, Handler, HandlerContext, HandlerResult, Interrupted, Registry, call
from dagmaster.model.workflow import CHILD_SEPARATOR
from dagmaster.queues.contract import TaskMessage, TaskReport
from dagmaster.worker.execute import execute
from dagmaster.worker.worker import Worker

Fault = BaseException | type[BaseException]
Lose = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class AttemptFaults:
    """The faults of one attempt, in this order. `lost_after` is the phase whose checkpoint is still saved."""

    delay_seconds: float = 0.0
    error: Fault | None = None
    is_lost: bool = False
    lost_after: str | None = None

    @property
    def is_mere_delay(self) -> bool:
        return self.error is None and not self.is_lost


@dataclass(slots=True)
class Faults:
    """By node and attempt; attempts count from 1, and None means all of them."""

    _planned: dict[tuple[str, int | None], AttemptFaults] = field(default_factory=dict)

    def add(self, node: str, attempt: int | None, **faults: Any) -> None:
        if attempt is not None and attempt < 1:
            raise Invalid(f"attempts count from 1, not {attempt}; None means every attempt")
        key = (node, attempt)
        self._planned[key] = replace(self._planned.get(key, AttemptFaults()), **faults)

    def of(self, message: TaskMessage) -> AttemptFaults | None:
        """Faults of a node take precedence over faults of its whole fan-out."""
        fan_out, _, index = message.node_id.rpartition(CHILD_SEPARATOR)
        nodes = [message.node_id, fan_out] if fan_out and index.isdecimal() else [message.node_id]
        keys = [(node, attempt) for node in nodes for attempt in (message.retry_count + 1, None)]
        return next((self._planned[key] for key in keys if key in self._planned), None)


class FaultyWorker(Worker):
    """A worker that injects the declared faults.

    They apply only to the job under test: its child jobs may have nodes of the same names.
    """

    def __init__(
        self,
        *args: Any,
        job_id: Awaitable[int],
        faults: Faults,
        lose: Callable[[TaskMessage, str], Awaitable[None]],
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        self._job_id, self._faults, self._lose = job_id, faults, lose

    async def _execute(self, message: TaskMessage) -> TaskReport:
        faults = self._faults.of(message)
        if faults is None or message.handler not in self.handlers or message.job_id != await self._job_id:
            return await super()._execute(message)
        handler = self.task_runner.execution.registry.get(message.handler)
        if handler.isolation == "process" and faults.is_mere_delay:
            # A process cannot be wrapped; delay its start.
            await asyncio.sleep(min(faults.delay_seconds, message.timeout_seconds))
            return await super()._execute(message)
        registry = Registry()
        lose = partial(self._lose, message, self.worker_id)
        registry.register(_stand_in(handler, faults, lose, self.task_runner.execution.threads))
        return await execute(message, replace(self.task_runner.execution, registry=registry), self.worker_id)


def _stand_in(handler: Handler, faults: AttemptFaults, lose: Lose, threads: Executor) -> Handler:
    async def stand_in(ctx: HandlerContext) -> HandlerResult:
        await asyncio.sleep(faults.delay_seconds)
        if faults.error is not None:
            raise _unused(faults.error)
        if faults.is_lost and faults.lost_after is None:
            return await _vanish(lose)
        if faults.lost_after is None:
            return await call(handler, ctx, executor=threads)
        _stop_after(faults.lost_after, ctx)
        try:
            result = await call(handler, ctx, executor=threads)
        except Interrupted:
            return await _vanish(lose)
        return await _vanish(lose) if ctx.stopping.is_set() else result

    return Handler(handler.name, stand_in)


def _unused(error: Fault) -> BaseException:
    """The error without the traceback of the previous attempt."""
    return error() if isinstance(error, type) else error.with_traceback(None)


async def _vanish(lose: Lose) -> HandlerResult:
    """Let the worker of this attempt disappear."""
    await lose()
    await asyncio.Event().wait()  # Until it is revoked.
    raise AssertionError("the event is never set")


def _stop_after(phase: str, ctx: HandlerContext) -> None:
    """Stop the handler after the checkpoint of this phase is stored."""
    sink, ctx.stopping = ctx.checkpoint_sink, threading.Event()

    def save(checkpoint: Checkpoint) -> Future[None] | None:
        stored = sink(checkpoint) if sink is not None else None
        if checkpoint.phase == phase:
            ctx.stopping.set()
        return stored

    ctx.checkpoint_sink = save
