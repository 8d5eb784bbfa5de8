"""The worker's side of a child: sends tasks, receives outcomes and output, and ends the process."""

import asyncio
import fcntl
import logging
import os
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from io import BytesIO
from typing import Any

import orjson

from dagmaster.handlers.contract import Checkpoint, HandlerContext
from dagmaster.worker.processes.outcome import Death
from dagmaster.worker.processes.wire import Frame, pack, read

log = logging.getLogger(__name__)

# Read at once; the rest of the loop waits that long.
CHUNK_BYTES = 256 * 1024
PIPE_BYTES = 1024 * 1024
FINAL_OUTPUT_SECONDS = 1.0
GONE_WITHIN_SECONDS = 5.0


class Peer:
    def __init__(
        self,
        pid: int,
        streams: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        output: int,
        death: "asyncio.Future[Death]",
        kill: Callable[[int], None],
    ) -> None:
        self.pid = pid
        self.death = death
        self.is_reusable = True
        self.spent_seconds = 0.0
        self._has_worked = self._has_begun = False
        self._reader, self._writer = streams
        self._output: int | None = output
        self._write_log: Callable[[bytes], None] | None = None
        self._kill = kill
        self._loop = asyncio.get_running_loop()
        self._receiving: asyncio.Task[Frame | None] | None = None
        os.set_blocking(output, False)
        self._loop.add_reader(output, self._read_output)

    def send(self, head: dict[str, Any], body: bytes = b"") -> None:
        if not self._writer.is_closing():
            self._writer.write(pack(head, body))

    async def perform(
        self, head: dict[str, Any], body: bytes, ctx: HandlerContext, write_log: Callable[[bytes], None]
    ) -> Frame | None:
        """Run a task; returns its outcome after all output has been read, or None when the child died."""
        self._write_log = write_log
        self.is_reusable = self._has_begun = False
        self.send(head, body)
        # A task of its own: if the caller is cancelled, the child is still read until it has ended.
        self._receiving = asyncio.create_task(self._receive_outcome(ctx))
        await self._wait_for_end(None)
        if not self._receiving.done():
            await asyncio.wait([self._receiving], timeout=FINAL_OUTPUT_SECONDS)
        outcome = self._receiving.result() if self._receiving.done() else None
        if outcome is None:
            await self._reap()
        await self._read_rest()
        if outcome is not None:
            self._has_worked = True
            self.is_reusable = outcome.head["reusable"]
            self.spent_seconds += outcome.head["cpu_seconds"]
        return outcome

    @property
    def died_idle(self) -> bool:
        """Whether it had died, unnoticed, before it received its last task."""
        return self._has_worked and not self._has_begun

    async def end(self, within_seconds: float) -> None:
        """Ask the child to stop, then kill it. It is dead when this returns."""
        self.is_reusable = False
        self.send({"kind": "cancel"})
        await self._wait_for_end(within_seconds)
        self._kill(self.pid)
        await self._reap()
        await self._read_rest()

    def retire(self) -> None:
        """Close the connection; the child then ends by itself."""
        self.is_reusable = False
        self._write_log = None
        if self._receiving is not None:
            self._receiving.cancel()
        self._writer.transport.abort()  # A child that does not read would block pending writes.
        if self._output is not None:
            self._loop.remove_reader(self._output)
            os.close(self._output)
            self._output = None

    def go_idle(self) -> None:
        """Drop the output until the next task: it belongs to none."""
        self._write_log = self._receiving = None

    async def _wait_for_end(self, timeout: float | None) -> None:
        """Wait until the child has reported or is dead."""
        waiting: list[asyncio.Future[Any]] = [self.death]
        if self._receiving is not None:
            waiting.append(self._receiving)
        await asyncio.wait(waiting, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)

    async def _receive_outcome(self, ctx: HandlerContext) -> Frame | None:
        while (frame := await read(self._reader)) is not None:
            match frame.head:
                case {"kind": "begun"}:
                    self._has_begun = True
                case {"kind": "progress", "task_id": ctx.task_id, **progress}:
                    ctx.progress(**progress)
                case {"kind": "checkpoint", "task_id": ctx.task_id, "number": number, "phase": phase}:
                    content = orjson.loads(frame.body)
                    checkpoint = Checkpoint(phase, content["data"], tuple(content["artifacts"]))
                    ctx.last_checkpoint = checkpoint
                    self._store(number, ctx.checkpoint_sink, checkpoint)
                case {"kind": "added", "task_id": ctx.task_id, "number": number, "sizes": sizes}:
                    body = BytesIO(frame.body)
                    self._store(number, ctx.add_sink, [body.read(size) for size in sizes])
                case {"kind": "outcome"}:
                    return frame
        return None

    def _store(self, number: int, sink: Callable[[Any], Future[None] | None] | None, item: object) -> None:
        try:
            stored = sink(item) if sink is not None else None
        except Exception as error:  # noqa: BLE001 - it is the handler's error, as if it ran here
            self._answer(number, error)
            return
        if stored is None:
            self._answer(number, None)
        else:
            stored.add_done_callback(partial(self._answer_threadsafe, number))

    def _answer_threadsafe(self, number: int, stored: Future[None]) -> None:
        # A cancelled future needs no answer: the task is no longer this worker's.
        if not stored.cancelled():
            self._loop.call_soon_threadsafe(self._answer, number, stored.exception())

    def _answer(self, number: int, error: BaseException | None) -> None:
        reason = None if error is None else [type(error).__name__, str(error)]
        self.send({"kind": "stored", "number": number, "error": reason})

    async def _reap(self) -> None:
        """Wait for the end of the process; kill it if it only went silent."""
        if not self.death.done():
            await asyncio.wait([self.death], timeout=FINAL_OUTPUT_SECONDS)
        if not self.death.done():
            self._kill(self.pid)
            await asyncio.wait([self.death], timeout=GONE_WITHIN_SECONDS)
        if not self.death.done():
            log.warning("process %d was killed but still exists; it may be waiting for a disk", self.pid)

    async def _read_rest(self) -> None:
        """Read the remaining output, for a limited time: a subprocess may hold the pipe open."""
        deadline = self._loop.time() + FINAL_OUTPUT_SECONDS
        while self._read_output() and self._loop.time() < deadline:  # noqa: ASYNC110 - yields to the loop
            await asyncio.sleep(0)

    def _read_output(self) -> bool:
        """Read once; returns whether there may be more."""
        if self._output is None:
            return False
        try:
            chunk = os.read(self._output, CHUNK_BYTES)
        except BlockingIOError:
            return False
        if not chunk:
            self._loop.remove_reader(self._output)
            return False
        if self._write_log is not None:
            self._write_log(chunk)
        return True


def output_pipe() -> tuple[int, int]:
    """A pipe with a large buffer: a child that prints blocks only when it is full."""
    read_end, write_end = os.pipe()
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        with suppress(OSError):  # Beyond the limit for users.
            fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    return read_end, write_end
