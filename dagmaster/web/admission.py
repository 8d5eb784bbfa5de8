"""What is checked before a request's body is read: who asks, and that the body comes."""

import asyncio
from time import monotonic
from typing import Final

from fastapi.requests import HTTPConnection, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dagmaster.errors import DagmasterError
from dagmaster.web.access import decision
from dagmaster.web.errors import answer, answer_to
from dagmaster.web.sessions import SAFE_METHODS

CHUNK_SECONDS: Final = 30.0
WHOLE_BODY_SECONDS: Final = 300.0


class BodyTooSlow(DagmasterError):
    """the body of the request did not come in time"""


class Admission:
    """FastAPI reads a body before it asks whether the caller may send one. Here the first piece is handed out only when
    the route lets the caller in, and the others as long as they come in time.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in SAFE_METHODS:  # Those bring no body, and may stay for long.
            await self._app(scope, receive, send)
            return
        body = _Body(scope, receive)

        async def unless_refused(message: Message) -> None:
            """Whoever reads the body makes an error of their own of ours; it is not the one that is told."""
            if body.refusal is None:
                await send(message)
            elif message["type"] == "http.response.start":
                await _refuse(body.refusal, scope, receive, send)

        await self._app(scope, body.receive, unless_refused)


class _Body:
    def __init__(self, scope: Scope, receive: Receive) -> None:
        self.refusal: Exception | None = None
        self._scope, self._receive = scope, receive
        self._began: float | None = None
        self._is_whole = False

    async def receive(self) -> Message:
        if self._is_whole:
            return await self._receive()
        try:
            if self._began is None:
                await self._admit()
                self._began = monotonic()
            return await self._next(self._began)
        except Exception as error:  # The database may be away too; what reads the body would call it a wrong body.
            self.refusal = error
            raise

    async def _admit(self) -> None:
        allow = decision(self._scope.get("route"))
        if allow is not None:
            await allow(HTTPConnection(self._scope), self._scope["app"].state.services)

    async def _next(self, began: float) -> Message:
        left = began + WHOLE_BODY_SECONDS - monotonic()
        try:
            async with asyncio.timeout(max(0.0, min(CHUNK_SECONDS, left))):
                message = await self._receive()
        except TimeoutError:
            raise BodyTooSlow from None
        self._is_whole = not message.get("more_body", False)
        return message


async def _refuse(error: Exception, scope: Scope, receive: Receive, send: Send) -> None:
    request = Request(scope)
    if isinstance(error, BodyTooSlow):
        said = answer(request, 408, "timeout", str(error))
    else:
        said = await answer_to(request, error)
    said.headers["Connection"] = "close"  # What is left of the body is not waited for.
    await said(scope, receive, send)
