"""Admit the caller before the body is read, and limit the size of the body and the time in which it must arrive."""

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Final

from fastapi.requests import HTTPConnection, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dagmaster.errors import DagmasterError, TooLarge
from dagmaster.http.errors import ErrorResponses, reply

CHUNK_SECONDS: Final = 30.0
WHOLE_BODY_SECONDS: Final = 300.0
BODILESS_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})

Admit = Callable[[HTTPConnection], Awaitable[None]]


class BodyTooSlow(DagmasterError):
    """the body of the request did not come in time"""


class Admission:
    """FastAPI reads the body before it checks the caller. This middleware passes the first chunk on only after the
    route has admitted the caller, and the others only if they arrive in time.
    """

    def __init__(self, app: ASGIApp, *, admit: Admit, errors: ErrorResponses) -> None:
        self._app, self._admit, self._errors = app, admit, errors

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (
            scope["type"] != "http" or scope["method"] in BODILESS_METHODS
        ):  # They have no body, and may stay open for long.
            await self._app(scope, receive, send)
            return
        body = _Body(scope, receive, self._admit)

        async def unless_refused(message: Message) -> None:
            """The body reader wraps this error in its own; the client gets this one."""
            if body.refusal is None:
                await send(message)
            elif message["type"] == "http.response.start":
                await self._refuse(body.refusal, scope, receive, send)

        await self._app(scope, body.receive, unless_refused)

    async def _refuse(self, error: Exception, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        if isinstance(error, BodyTooSlow):
            response = self._errors.form(request, 408, "timeout", str(error), ())
        else:
            response = await self._errors.answer_to(request, error)
        response.headers["Connection"] = "close"  # The rest of the body is not read.
        await response(scope, receive, send)


class _Body:
    def __init__(self, scope: Scope, receive: Receive, admit: Admit) -> None:
        self.refusal: Exception | None = None
        self._scope, self._receive, self._admit = scope, receive, admit
        self._began: float | None = None
        self._is_whole = False

    async def receive(self) -> Message:
        if self._is_whole:
            return await self._receive()
        try:
            if self._began is None:
                await self._admit(HTTPConnection(self._scope))
                self._began = monotonic()
            return await self._next(self._began)
        except Exception as error:  # Such as an unavailable database; the body reader would report an invalid body.
            self.refusal = error
            raise

    async def _next(self, began: float) -> Message:
        left = began + WHOLE_BODY_SECONDS - monotonic()
        try:
            async with asyncio.timeout(max(0.0, min(CHUNK_SECONDS, left))):
                message = await self._receive()
        except TimeoutError:
            raise BodyTooSlow from None
        self._is_whole = not message.get("more_body", False)
        return message


class BodyLimit:
    """Rejects a body that is too long, by its Content-Length or while it is read."""

    def __init__(self, app: ASGIApp, *, max_bytes: int) -> None:
        self._app, self._max_bytes = app, max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        if declared.isdigit() and int(declared) > self._max_bytes:
            await self._refuse(scope, receive, send)
            return
        await self._count(scope, receive, send)

    async def _count(self, scope: Scope, receive: Receive, send: Send) -> None:
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._max_bytes:
                raise TooLarge(self._message())
            return message

        async def unless_refused(message: Message) -> None:
            """The body reader wraps this error in its own; the client gets this one."""
            if received <= self._max_bytes:
                await send(message)
            elif message["type"] == "http.response.start":
                await self._refuse(scope, receive, send)

        await self._app(scope, counted, unless_refused)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        await reply(413, "too_large", self._message())(scope, receive, send)

    def _message(self) -> str:
        return f"a body must not exceed {self._max_bytes} bytes (DAGMASTER_MAX_BODY_BYTES)"
