"""Proxies in front of PostgreSQL, one for each process; each can delay, refuse or silently drop its connections."""

import asyncio
import socket
import struct
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Self

from psycopg.conninfo import conninfo_to_dict

CHUNK_BYTES = 65_536
ANSWER_SECONDS = 60.0
# Closing a socket with a linger time of zero resets the connection.
LINGER = struct.pack("ii", 1, 0)

Reader = asyncio.StreamReader
Writer = asyncio.StreamWriter


class Proxy:
    """Forwards a port to the socket of the server. It runs in the thread of `Proxies`; other threads control it."""

    dsn: str

    def __init__(self, loop: asyncio.AbstractEventLoop, socket_path: str) -> None:
        self._loop, self._path = loop, socket_path
        self._visitors: set[Writer] = set()
        self._in, self._out = asyncio.Event(), asyncio.Event()
        self._in.set()
        self._out.set()
        self._is_shut = False
        self._delay_seconds = 0.0
        self._server: asyncio.Server | None = None

    def open(self) -> None:
        self._tell(self._become())

    def shut(self) -> None:
        """Close all connections and refuse new ones."""
        self._tell(self._become(is_shut=True))
        self.reset()

    def silence(self) -> None:
        """Nothing passes in either direction, as when a cable is pulled. Bytes sent meanwhile arrive late."""
        self._tell(self._become(is_silent=True))

    def withhold(self) -> None:
        """Requests arrive and are executed; the responses come late."""
        self._tell(self._become(is_withholding=True))

    def slow_down(self, seconds: float) -> None:
        self._tell(self._become(delay_seconds=seconds))

    def reset(self) -> None:
        """Close all connections; clients may connect again."""
        self._tell(self._throw_out())

    def _tell(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(ANSWER_SECONDS)

    # In the thread of the proxies.

    async def listen(self) -> int:
        self._server = await asyncio.start_server(self._enter, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        await self._become(is_shut=True)
        await self._throw_out()

    async def _become(
        self,
        *,
        is_shut: bool = False,
        is_silent: bool = False,
        is_withholding: bool = False,
        delay_seconds: float = 0.0,
    ) -> None:
        self._is_shut, self._delay_seconds = is_shut, delay_seconds
        for way, is_blocked in ((self._in, is_silent), (self._out, is_silent or is_withholding)):
            if is_blocked:
                way.clear()
            else:
                way.set()

    async def _throw_out(self) -> None:
        for writer in self._visitors:
            _reset(writer)

    async def _enter(self, reader: Reader, writer: Writer) -> None:
        self._visitors.add(writer)
        with suppress(OSError):  # The server is away.
            await self._lead(reader, writer)
        self._visitors.discard(writer)
        writer.close()

    async def _lead(self, reader: Reader, writer: Writer) -> None:
        await self._in.wait()
        if self._is_shut:
            _reset(writer)
            return
        back, forth = await asyncio.open_unix_connection(self._path)
        ways = (self._pump(reader, forth, self._in), self._pump(back, writer, self._out))
        pumps = [asyncio.create_task(way) for way in ways]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            forth.close()

    async def _pump(self, source: Reader, target: Writer, is_clear: asyncio.Event) -> None:
        """Until one side has ended, which the other does not see through a silent proxy."""
        with suppress(ConnectionError):
            while True:
                data = await _read(source)
                await asyncio.sleep(self._delay_seconds)
                await is_clear.wait()
                if not data:
                    return
                target.write(data)
                await target.drain()


async def _read(source: Reader) -> bytes:
    try:
        return await source.read(CHUNK_BYTES)
    except ConnectionError:
        return b""


def _reset(writer: Writer) -> None:
    with suppress(OSError):  # It may have ended by itself.
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER)
    writer.transport.abort()


class Proxies:
    """They run in their own thread, so that the test can block."""

    def __init__(self, dsn: str) -> None:
        """For a server that listens on a socket in a folder."""
        self._parts: dict[str, Any] = conninfo_to_dict(dsn)
        self._proxies: list[Proxy] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxies", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(ANSWER_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def add(self) -> Proxy:
        proxy = Proxy(self._loop, f"{self._parts['host']}/.s.PGSQL.{self._parts['port']}")
        port = asyncio.run_coroutine_threadsafe(proxy.listen(), self._loop).result(ANSWER_SECONDS)
        address = f"{self._parts['user']}@127.0.0.1:{port}/{self._parts['dbname']}"
        proxy.dsn = f"postgresql://{address}?sslmode=disable&gssencmode=disable"
        self._proxies.append(proxy)
        return proxy

    async def _close(self) -> None:
        for proxy in self._proxies:
            await proxy.close()
        if others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others)
