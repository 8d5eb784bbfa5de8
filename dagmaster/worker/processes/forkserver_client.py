"""The worker's side of the fork server."""

import asyncio
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
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
        self._forked: asyncio.Future[tuple[int, asyncio.Future[Death]]] | None = None
        self._deaths: dict[int, asyncio.Future[Death]] = {}
        self._one_by_one = asyncio.Lock()
        self._listening = asyncio.create_task(self._listen())

    @classmethod
    async def open(cls, specs: Sequence[str], handlers: Sequence[Reference], max_output_bytes: int) -> Self:
        """Start a fork server. Returns at once, while the handlers are loaded."""
        parent_end, child_end = socket.socketpair()
        try:
            process = _spawn(child_end)
        except OSError as error:
            parent_end.close()
            raise Unavailable(f"cannot start the fork server: {error}") from error
        finally:
            child_end.close()
        reader, writer = await asyncio.open_unix_connection(sock=parent_end)
        writer.write(pack(_config(specs, handlers, max_output_bytes)))
        return cls(process, parent_end, (reader, writer))

    async def fork(self) -> Peer:
        """Fork a child. Raises Unavailable with the reason when there is no fork server."""
        await asyncio.shield(self._ready)
        async with self._one_by_one:
            if self.is_lost:
                raise Unavailable(GONE)
            self._forked = self._loop.create_future()
            parent_end, output = self._ask_for_child()
            try:
                pid, death = await self._forked
                streams = await asyncio.open_unix_connection(sock=parent_end)
            except BaseException:
                parent_end.close()
                os.close(output)
                raise
        return Peer(pid, streams, output, death, self.kill)

    def _ask_for_child(self) -> tuple[socket.socket, int]:
        parent_end, child_end = socket.socketpair()
        output, inner = output_pipe()
        try:
            socket.send_fds(self._sock, [REQUEST.pack(FORK, 0)], [child_end.fileno(), inner])
        except OSError as error:
            parent_end.close()
            os.close(output)
            raise Unavailable(GONE) from error
        finally:
            child_end.close()
            os.close(inner)
        return parent_end, output

    def kill(self, pid: int) -> None:
        """Let the fork server kill the child: it knows whether the pid is still the child's."""
        if pid not in self._deaths or self._deaths[pid].done():
            return
        try:
            self._sock.send(REQUEST.pack(KILL, pid))
        except OSError:
            kill_group(pid)

    async def close(self) -> None:
        """Close the socket; the fork server then kills its children and ends."""
        self._writer.close()
        await self._reaped()
        self._listening.cancel()
        self._lose()

    async def _reaped(self) -> None:
        """Wait until the process has ended and was reaped."""
        deadline = self._loop.time() + ENDS_WITHIN_SECONDS
        while self._process.poll() is None:
            if self._loop.time() > deadline:
                self._process.kill()
            await asyncio.sleep(LOOK_EVERY_SECONDS)

    async def _listen(self) -> None:
        while (frame := await read(self._reader)) is not None:
            match frame.head:
                case {"kind": "ready"}:
                    self._ready.set_result(None)
                case {"kind": "broken", "reason": reason}:
                    self.is_lost = True
                    self._refuse(f"cannot run handlers with isolation='process': {reason}")
                case {"kind": "forked", "pid": pid} if self._forked is not None:
                    self._deaths[pid] = self._loop.create_future()
                    self._forked.set_result((pid, self._deaths[pid]))
                case {"kind": "unable", "reason": reason} if self._forked is not None:
                    self._forked.set_exception(Unavailable(reason))
                case {"kind": "ended", "pid": pid, **rest}:
                    self._deaths.pop(pid).set_result(Death(**rest))
        self._lose()
        self._writer.close()
        await self._reaped()

    def _refuse(self, reason: str) -> None:
        if not self._ready.done():
            self._ready.set_exception(Unavailable(reason))
            self._ready.exception()  # Retrieved: perhaps no task ever awaits it.

    def _lose(self) -> None:
        """Note that the fork server is gone. Its children die with it; their subprocesses are killed here."""
        self.is_lost = True
        self._refuse(f"{GONE} while loading the handlers")
        if self._forked is not None and not self._forked.done():
            self._forked.set_exception(Unavailable(GONE))
        for pid, death in self._deaths.items():
            kill_group(pid)
            death.set_result(Death(None))
        self._deaths.clear()


def _spawn(child_end: socket.socket) -> "subprocess.Popen[bytes]":
    # -P and the path: a module in the current folder must not shadow one of Python or dagmaster.
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(_path())}
    return subprocess.Popen(
        [sys.executable, "-P", "-m", MODULE, str(child_end.fileno())],
        pass_fds=[child_end.fileno()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,  # The worker has already printed what modules print when they are loaded.
        start_new_session=True,  # Ctrl-C is for the worker alone.
        env=environ,
    )


def _path() -> list[str]:
    return [folder or os.getcwd() for folder in sys.path]  # noqa: PTH109 - as Python reads the empty entry


def _config(specs: Sequence[str], handlers: Sequence[Reference], max_output_bytes: int) -> dict[str, Any]:
    return {
        "specs": list(specs),
        "handlers": [asdict(reference) for reference in handlers],
        "path": _path(),
        "python_path": os.environ.get("PYTHONPATH"),
        "log_level": LEVELS.get(logging.getLogger().level, "INFO"),
        "max_output_bytes": max_output_bytes,
    }
