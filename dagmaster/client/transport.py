"""The transport of requests: with asyncio, or blocking."""

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import Any, Protocol

import httpx
from httpx_sse import aconnect_sse, connect_sse

from dagmaster.client.call import Call
from dagmaster.client.connection import connection_options, headers_of, log_timeout
from dagmaster.client.errors import error_of, unreachable
from dagmaster.client.event_stream import EventStream
from dagmaster.errors import DagmasterError
from dagmaster.schemas.timeline import TimelineEntry


class Transport(Protocol):
    async def send(self, call: Call[Any]) -> httpx.Response:
        """Raises httpx.TransportError."""

    async def sleep(self, seconds: float) -> None: ...

    def events(self, stream: EventStream) -> AsyncGenerator[TimelineEntry, None]:
        """The events of one connection, until it ends or is lost."""

    def text(self, path: str, params: dict[str, Any], *, follow: bool) -> AsyncGenerator[str, None]: ...

    async def close(self) -> None: ...


class AsyncTransport:
    def __init__(self, url: str, key: str | None, timeout_seconds: float) -> None:
        self.http = httpx.AsyncClient(**connection_options(url, key, timeout_seconds))

    async def send(self, call: Call[Any]) -> httpx.Response:
        return await self.http.request(**_request(call))

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def events(self, stream: EventStream) -> AsyncGenerator[TimelineEntry, None]:
        try:
            async with aconnect_sse(self.http, **stream.request(self.http.timeout)) as source:
                if source.response.is_error:
                    await source.response.aread()
                stream.opened(source.response)
                async for event in source.aiter_sse():
                    yield stream.take(event)
        except (httpx.TransportError, DagmasterError) as error:
            stream.lose(error)

    async def text(self, path: str, params: dict[str, Any], *, follow: bool) -> AsyncGenerator[str, None]:
        timeout = log_timeout(self.http.timeout, follow)
        try:
            async with self.http.stream("GET", path, params=params, timeout=timeout) as response:
                if not response.is_success:
                    await response.aread()
                    raise error_of(response)
                async for piece in response.aiter_text():
                    yield piece
        except httpx.TransportError as error:
            raise unreachable(error.request.url, error) from error

    async def close(self) -> None:
        await self.http.aclose()


class BlockingTransport:
    """Blocking: its coroutines never suspend, so `complete` can run them without an event loop."""

    def __init__(self, url: str, key: str | None, timeout_seconds: float) -> None:
        self.http = httpx.Client(**connection_options(url, key, timeout_seconds))

    async def send(self, call: Call[Any]) -> httpx.Response:
        return self.http.request(**_request(call))

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - no loop runs these coroutines

    async def events(self, stream: EventStream) -> AsyncGenerator[TimelineEntry, None]:
        try:
            with connect_sse(self.http, **stream.request(self.http.timeout)) as source:
                if source.response.is_error:
                    source.response.read()
                stream.opened(source.response)
                for event in source.iter_sse():
                    yield stream.take(event)
        except (httpx.TransportError, DagmasterError) as error:
            stream.lose(error)

    async def text(self, path: str, params: dict[str, Any], *, follow: bool) -> AsyncGenerator[str, None]:
        timeout = log_timeout(self.http.timeout, follow)
        try:
            with self.http.stream("GET", path, params=params, timeout=timeout) as response:
                if not response.is_success:
                    response.read()
                    raise error_of(response)
                for piece in response.iter_text():
                    yield piece
        except httpx.TransportError as error:
            raise unreachable(error.request.url, error) from error

    async def close(self) -> None:
        self.http.close()


def _request(call: Call[Any]) -> dict[str, Any]:
    return {
        "method": call.method,
        "url": call.path,
        "params": call.params,
        "content": call.content,
        "headers": headers_of(call),
    }
