"""Run one handler in the main thread, where signals can interrupt it."""

import asyncio
import inspect
import threading
from dataclasses import dataclass
from typing import Any, Literal

from dagmaster import tracing
from dagmaster.handlers.contract import HandlerContext, HandlerResult, Interrupted
from dagmaster.handlers.current import working_on
from dagmaster.handlers.invocation import arguments_of, encode_output, failure, normalised, settle
from dagmaster.handlers.registry import Handler
from dagmaster.logs import about
from dagmaster.worker.processes.system import limited


@dataclass(frozen=True, slots=True)
class Ending:
    kind: Literal["ended", "interrupted", "cancelled"]
    result: HandlerResult
    output: bytes = b""
    metrics: bytes = b"null"


INTERRUPTED = Ending("interrupted", HandlerResult.failed("interrupted: the worker stops"))
CANCELLED = Ending("cancelled", HandlerResult.failed("cancelled"))


class Attempt:
    def __init__(self, handler: Handler, ctx: HandlerContext, max_output_bytes: int) -> None:
        self.ctx = ctx
        self._handler = handler
        self._max_output_bytes = max_output_bytes
        self._can_be_interrupted = False
        self._in_loop: asyncio.Task[Any] | None = None

    def run(self) -> Ending:
        try:
            try:
                self._can_be_interrupted = True
                return self._ending()
            finally:
                self._can_be_interrupted = False
        except asyncio.CancelledError:  # The signal came after the handler had ended.
            return CANCELLED

    def interrupt(self) -> None:
        """Cancel the handler, once. Called by a signal in the main thread."""
        if not self._can_be_interrupted:
            return
        if self._in_loop is not None:
            self._in_loop.get_loop().call_soon_threadsafe(self._in_loop.cancel)
            return
        self._can_be_interrupted = False
        raise asyncio.CancelledError

    def _ending(self) -> Ending:
        ctx = self.ctx
        try:
            with about(job_id=ctx.job_id, node_id=ctx.node_id, task_id=ctx.task_id):
                return self._run()
        except Interrupted:
            return INTERRUPTED
        except BaseException as error:  # noqa: BLE001 - the process survives SystemExit and Rust panics too
            if isinstance(error, asyncio.CancelledError) and ctx.cancelled.is_set():
                return CANCELLED
            tracing.record(error)
            return Ending("ended", failure(error, ctx))

    def _run(self) -> Ending:
        limit = self._max_output_bytes
        # The limit ends before the failure is built: there must be memory to report that there was none.
        with limited(self._handler.memory_mb):
            result = normalised(self._call())
            output = encode_output(result.output, limit) if result.success else b""
            return Ending("ended", result, output, encode_output(result.metrics, limit))

    def _call(self) -> Any:
        if self.ctx.cancelled.is_set():  # The signal came before the handler began.
            raise asyncio.CancelledError
        with working_on(self.ctx):
            value = self._handler.function(*arguments_of(self._handler, self.ctx))
            if inspect.isawaitable(value) or inspect.isasyncgen(value):
                return asyncio.run(self._settled(value))
            return value

    async def _settled(self, value: Any) -> Any:
        self._in_loop = asyncio.current_task()
        try:
            return await settle(value, self.ctx)
        finally:
            self._in_loop = None


def leaves_threads() -> bool:
    """Whether a handler left threads that are still running."""
    main = threading.main_thread()
    return any(thread is not main and not thread.daemon for thread in threading.enumerate())
