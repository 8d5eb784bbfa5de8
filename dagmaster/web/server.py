"""The web server around the application, in the caller's event loop."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from ipaddress import ip_address
from typing import Any

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from dagmaster.errors import Misconfigured

GRACE_SECONDS = 5
HEADER_SECONDS = 30.0


class TimedProtocol(HttpToolsProtocol):
    """Closes a connection whose request does not arrive in time. Between requests, uvicorn's own limit applies."""

    _headers_due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._headers_due is None:
            self._await_headers()

    def on_headers_complete(self) -> None:
        self._forget()
        super().on_headers_complete()

    def _await_headers(self) -> None:
        self._headers_due = self.loop.call_later(HEADER_SECONDS, self._give_up)

    def _forget(self) -> None:
        if self._headers_due is not None:
            self._headers_due.cancel()
            self._headers_due = None

    def _give_up(self) -> None:
        self._headers_due = None
        transport: Any = self.transport
        if not transport.is_closing():
            transport.close()


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_ready = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.is_ready.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The process handles signals itself."""
        yield


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def bind(host: str, port: int) -> socket.socket:
    """Call it before anything else is started, so that a port in use fails early."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise Misconfigured(f"the address {host!r} (DAGMASTER_API_HOST) cannot be resolved: {error}") from error
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise Misconfigured(
            f"cannot listen on {host}:{port}: {error.strerror}; choose another with --port or DAGMASTER_API_PORT"
        ) from error
    listener.setblocking(False)
    return listener


def port_of(listener: socket.socket) -> int:
    port: int = listener.getsockname()[1]
    return port


def url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


@asynccontextmanager
async def served(app: Starlette, listener: socket.socket) -> AsyncIterator[None]:
    """Serve while the block runs; then end the streams."""
    config = uvicorn.Config(
        app,
        http=TimedProtocol,
        ws="websockets-sansio",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
        timeout_keep_alive=65,
    )
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    server = _Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    await asyncio.wait([task, asyncio.create_task(server.is_ready.wait())], return_when=asyncio.FIRST_COMPLETED)
    try:
        yield
    finally:
        app.state.is_stopping = True
        server.should_exit = True
        await task
