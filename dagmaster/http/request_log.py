"""The log of requests: an id for each request, its trace, and one line."""

import logging
import re
from secrets import token_hex
from time import perf_counter

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dagmaster import tracing
from dagmaster.logs import remember

REQUEST_ID = "X-Request-ID"
ACCEPTED = re.compile(r"[A-Za-z0-9._:-]{1,64}")

log = logging.getLogger(__name__)


class RequestLog:
    """The outermost middleware: rejected requests have an id too."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        request_id = _id(headers.get(REQUEST_ID))
        # Not reset at the end: the outer handler of unexpected errors logs and returns it.
        remember(request_id=request_id)
        tracing.come_from(headers.get("traceparent"))
        state = scope.setdefault("state", {})
        status = 101 if scope["type"] == "websocket" else 500
        began = perf_counter()

        async def send_on(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)[REQUEST_ID] = request_id
            await send(message)

        try:
            await self._app(scope, receive, send_on)
        finally:
            if log.isEnabledFor(logging.DEBUG):
                caller = getattr(state.get("caller"), "name", "") or "-"
                took = (perf_counter() - began) * 1000
                method = scope.get("method", "WEBSOCKET")
                log.debug("%s %s %s %.1f ms %s", method, scope["path"], status, took, caller)


def _id(header: str | None) -> str:
    """The caller's id if it is safe to log."""
    return header if header is not None and ACCEPTED.fullmatch(header) else token_hex(8)
