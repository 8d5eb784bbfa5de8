"""The size limit of request bodies."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dagmaster.errors import TooLarge
from dagmaster.http.errors import reply


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
