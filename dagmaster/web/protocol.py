"""uvicorn's HTTP protocol with a time limit on the arrival of a request."""

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEADER_SECONDS: Final = 30.0


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
