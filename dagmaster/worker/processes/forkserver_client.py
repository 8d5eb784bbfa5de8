"""The worker's side of the fork server."""

import asyncio
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any, Self

from dagmaster.errors import Unavailable
from dagmaster.worker.processes.handler_lookup import Reference
from dagmaster.worker.processes.outcome import Death
from dagmaster.worker.processes.peer import Peer, output_pipe
from dagmaster.worker.processes.system import kill_group
from dagmaster.worker.processes.wire import FORK, KILL, REQUEST, pack, read

MODULE = "dagmaster.worker.processes.forkserver"
ENDS_WITHIN_SECONDS = 2.0
LOOK_EVERY_SECONDS = 0.005
LEVELS = {getattr(logging, name): name for name in ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")}
GONE = "the fork server ended"

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class ForkServerClient:
    def __init__(self, process: "subprocess.Popen[bytes]", sock: socket.socket, streams: Streams) -> None:
        self.is_lost = False
        self._process, self._sock = process, sock
        self._reader, self._writer = streams
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._forked: asyncio.Future[tuple[int, asyncio.Future[Death]]] = self._loop.create_future()
        self._deaths: dict[int, asyncio.Future[Death]] = {}
        self._one_by_one = asyncio.Lock()
        self._listening = asyncio.create_task(self._listen())

    @classmethod
    async def open(cls, specs: Sequence[str], handlers: Sequence[Reference], max_output_bytes: int) -> Self:
        """Start a fork server. Returns at once, while the handlers are loaded."""
        parent_end, child_end = socket.socketpair()
        try:
            process = _spawn(child_end.fileno())
        except OSError as error:
            parent_end.close()
            raise Unavailable(f"cannot start the fork server: {error}") from error
        finally:
            child_end.close()
        reader, writer = await asyncio.open_unix_connection(sock=parent_end)
        config = {
            "specs": list(specs),
            "handlers": [asdict(reference) for reference in handlers],
            "log_level": LEVELS.get(logging.getLogger().level, "INFO"),
            "max_output_bytes": max_output_bytes,
        }
        writer.write(pack(config))
        return cls(process, parent_end, (reader, writer))

    async def fork(self) -> Peer:
        """Fork a child. Raises Unavailable with the reason when there is no fork server."""
        await asyncio.shield(self._ready)
        async with self._one_by_one:
            if self.is_lost:
                raise Unavailable(GONE)
            with ExitStack() as opened:
                parent_end, child_end = socket.socketpair()
                output, child_output = output_pipe()
                opened.callback(parent_end.close)
                opened.callback(os.close, output)
                self._forked = self._loop.create_future()
                try:
                    socket.send_fds(self._sock, [REQUEST.pack(FORK, 0)], [child_end.fileno(), child_output])
                except OSError as error:
                    raise Unavailable(GONE) from error
                finally:
                    child_end.close()
                    os.close(child_output)
                pid, death = await self._forked
                streams = await asyncio.open_unix_connection(sock=parent_end)
                opened.pop_all()
        return Peer(pid, streams, output, death, self.kill)

    def kill(self, pid: int) -> None:
        """Let the fork server kill the child: it knows whether the pid is still the child's."""
        if pid not in self._deaths:
            return
        try:
            self._sock.send(REQUEST.pack(KILL, pid))
        except OSError:
            kill_group(pid)

    async def close(self) -> None:
        """Close the socket; the fork server then kills its children and ends."""
        self._writer.transport.abort()
        await self._listening

    async def _reaped(self) -> None:
        """Wait until the process has ended and was reaped."""
        deadline = self._loop.time() + ENDS_WITHIN_SECONDS
        while self._process.poll() is None:
            if self._loop.time() > deadline:
                self._process.kill()
            await asyncio.sleep(LOOK_EVERY_SECONDS)

    async def _listen(self) -> None:
        try:
            while (frame := await read(self._reader)) is not None:
                self._handle(frame.head)
        finally:
            self._lose()
            self._writer.close()
            await self._reaped()

    def _handle(self, head: dict[str, Any]) -> None:
        match head:
            case {"kind": "ready"}:
                self._ready.set_result(None)
            case {"kind": "broken", "reason": reason}:
                self.is_lost = True
                _refuse(self._ready, f"cannot run handlers with isolation='process': {reason}")
            case {"kind": "forked", "pid": pid}:
                death = self._deaths[pid] = self._loop.create_future()
                if not self._forked.done():
                    self._forked.set_result((pid, death))
            case {"kind": "unable", "reason": reason}:
                _refuse(self._forked, reason)
            case {"kind": "ended", "pid": pid, **rest}:
                self._deaths.pop(pid).set_result(Death(**rest))

    def _lose(self) -> None:
        """Note that the fork server is gone. Its children die with it; their subprocesses are killed here."""
        self.is_lost = True
        _refuse(self._ready, f"{GONE} while loading the handlers")
        _refuse(self._forked, GONE)
        for pid, death in self._deaths.items():
            kill_group(pid)
            death.set_result(Death(None))
        self._deaths.clear()


def _refuse(future: "asyncio.Future[Any]", reason: str) -> None:
    if not future.done():
        future.set_exception(Unavailable(reason))
        future.exception()  # Retrieved: perhaps no task ever awaits it.


def _spawn(control: int) -> "subprocess.Popen[bytes]":
    # -P and the path: a module in the current folder must not shadow one of Python or dagmaster.
    path = [folder or os.getcwd() for folder in sys.path]  # noqa: PTH109 - as Python reads the empty entry
    start = f"import sys; sys.path[:] = {path}; from {MODULE} import main; main({control}, {os.getpid()})"
    return subprocess.Popen(
        [sys.executable, "-P", "-c", start],
        pass_fds=[control],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,  # The worker has already printed what modules print when they are loaded.
        start_new_session=True,  # Ctrl-C is for the worker alone.
    )
