"""The processes of handlers with isolation="process": forked on demand, reused, and stopped by force if need be."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import orjson

from dagmaster import tracing
from dagmaster.errors import Unavailable
from dagmaster.handlers.contract import HandlerContext
from dagmaster.handlers.registry import Handler, Registry
from dagmaster.worker.processes.forkserver_client import ForkServerClient
from dagmaster.worker.processes.handler_lookup import refer_to
from dagmaster.worker.processes.outcome import Outcome, Usage, failed, outcome_of, outcome_reported
from dagmaster.worker.processes.peer import Peer
from dagmaster.worker.processes.system import oom_kills

__all__ = ["Children", "Outcome", "Usage"]

log = logging.getLogger(__name__)

IDLE_KEPT = 4
# The fields of a handler's context that are sent to the child.
CONTEXT = (
    *("task_id", "job_id", "node_id", "handler", "params", "retry_count", "timeout_seconds"),
    *("worker_id", "queue", "correlation_id", "resumed_from"),
)


class Children:
    """`specs` are the modules of the registry; the children load their handlers from the same."""

    def __init__(
        self,
        registry: Registry,
        specs: Sequence[str],
        *,
        kill_after_seconds: float = 2.0,
        max_output_bytes: int,
    ) -> None:
        self._registry, self._specs = registry, specs
        self._kill_after_seconds = kill_after_seconds
        self._max_output_bytes = max_output_bytes
        self._fork_server: ForkServerClient | None = None
        self._opening = asyncio.Lock()
        self._forking: set[asyncio.Task[Peer]] = set()
        self._idle: list[Peer] = []
        self._busy: dict[Peer, str] = {}
        self._stopping = self._closed = False

    @property
    def pids(self) -> Mapping[str, int]:
        """The processes of running tasks, by task."""
        return {task_id: peer.pid for peer, task_id in self._busy.items()}

    async def start(self) -> None:
        """Start loading the handlers, if there are any of this kind."""
        if not any(handler.isolation == "process" for handler in self._registry):
            return
        try:
            await self._open()
        except Unavailable as error:
            log.warning("%s", error)  # Retried for each task that needs it.

    async def run(self, handler: Handler, ctx: HandlerContext, write_log: Callable[[bytes], None]) -> Outcome:
        """Run the handler to its end. On cancellation the child is asked to stop, then killed, before this returns."""
        outcome = None
        while outcome is None:
            try:
                peer = await self._acquire()
            except Unavailable as error:
                return failed(str(error))
            outcome = await self._run_in(peer, handler, ctx, write_log)
        return outcome

    def stop_gently(self) -> None:
        """Let handlers stop at their next checkpoint."""
        self._stopping = True
        for peer in self._busy:
            peer.send({"kind": "stop"})

    async def close(self) -> None:
        """End all processes; handlers that still run have failed."""
        self._closed = True
        async with self._opening:
            if self._fork_server is not None:
                await self._fork_server.close()
        await asyncio.gather(*self._forking, return_exceptions=True)
        for peer in self._idle:
            peer.retire()
        self._idle.clear()

    async def _open(self) -> ForkServerClient:
        async with self._opening:
            if self._closed:
                raise Unavailable("the worker is stopping")
            if self._fork_server is not None and self._fork_server.is_lost:
                await self._fork_server.close()
                self._fork_server = None
            if self._fork_server is None:
                references = [refer_to(handler) for handler in self._registry if handler.isolation == "process"]
                self._fork_server = await ForkServerClient.open(self._specs, references, self._max_output_bytes)
            return self._fork_server

    async def _acquire(self) -> Peer:
        while self._idle:
            peer = self._idle.pop()
            if not peer.death.done():
                return peer
            peer.retire()
        # A task of its own: the fork completes even if its caller is cancelled.
        forking = asyncio.create_task(self._fork())
        self._forking.add(forking)
        forking.add_done_callback(self._forking.discard)
        try:
            return await asyncio.shield(forking)
        except asyncio.CancelledError:
            forking.add_done_callback(self._keep_unclaimed)
            raise

    async def _fork(self) -> Peer:
        return await (await self._open()).fork()

    def _keep_unclaimed(self, forking: "asyncio.Task[Peer]") -> None:
        if not forking.cancelled() and forking.exception() is None:
            self._release(forking.result())

    async def _run_in(
        self, peer: Peer, handler: Handler, ctx: HandlerContext, write_log: Callable[[bytes], None]
    ) -> Outcome | None:
        """None when the child was already dead, so that the caller takes another one."""
        killed_before = oom_kills()
        self._busy[peer] = ctx.task_id
        try:
            head = {
                "kind": "task",
                "handler": asdict(refer_to(handler)),
                "stopping": self._stopping or ctx.stopping.is_set(),
                "trace_parent": tracing.current_trace_parent(),
            }
            body = orjson.dumps({name: getattr(ctx, name) for name in CONTEXT})
            frame = await peer.perform(head, body, ctx, write_log)
        except asyncio.CancelledError:
            await _uninterrupted(peer.end(self._kill_after_seconds))
            raise
        finally:
            del self._busy[peer]
            self._release(peer)
        if frame is not None:
            return outcome_reported(frame.head, frame.body)
        if peer.died_idle:
            return None
        if not peer.death.done():
            return failed("the handler process does not respond and cannot be killed")
        return outcome_of(peer.death.result(), peer.spent_seconds, (killed_before, oom_kills()))

    def _release(self, peer: Peer) -> None:
        if self._closed or not peer.is_reusable or peer.death.done() or len(self._idle) >= IDLE_KEPT:
            peer.retire()
        else:
            peer.go_idle()
            self._idle.append(peer)


async def _uninterrupted(work: Coroutine[Any, Any, None]) -> None:
    """Run to the end, even if cancelled a second time."""
    working = asyncio.create_task(work)
    while not working.done():
        try:
            await asyncio.shield(working)
        except asyncio.CancelledError:
            continue
