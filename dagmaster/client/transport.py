"""The transport of requests: with asyncio, or blocking."""

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import Any, Protocol

import httpx
from httpx_sse import aconnect_sse, connect_sse

from dagmaster.certificates import trusted_authorities
from dagmaster.client.call import Call
from dagmaster.client.errors import error_of, unreachable
from dagmaster.client.event_stream import EventStream
from dagmaster.errors import DagmasterError, Misconfigured
from dagmaster.schemas.timeline import TimelineEntry
from dagmaster.tracing import current_trace_parent

CONNECT_SECONDS = 5.0


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
        self.http = httpx.AsyncClient(**_options(url, key, timeout_seconds))

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
            stream.lost = error

    async def text(self, path: str, params: dict[str, Any], *, follow: bool) -> AsyncGenerator[str, None]:
        timeout = _log_timeout(self.http.timeout, follow)
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
        self.http = httpx.Client(**_options(url, key, timeout_seconds))

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
            stream.lost = error

    async def text(self, path: str, params: dict[str, Any], *, follow: bool) -> AsyncGenerator[str, None]:
        timeout = _log_timeout(self.http.timeout, follow)
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


def _options(url: str, key: str | None, timeout_seconds: float) -> dict[str, Any]:
    if not url.startswith(("http://", "https://")):
        raise Misconfigured(f"the url should look like https://dagmaster.example.com, not {url!r}")
    headers = {"Accept": "application/json", "User-Agent": "dagmaster-client"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    timeout = httpx.Timeout(timeout_seconds, connect=min(CONNECT_SECONDS, timeout_seconds))
    return {"base_url": url, "headers": headers, "timeout": timeout, "verify": trusted_authorities()}


def _request(call: Call[Any]) -> dict[str, Any]:
    """With the trace context."""
    headers = dict(call.headers)
    if call.body is not None:
        headers["Content-Type"] = "application/json"
    if (trace_parent := current_trace_parent()) is not None:
        headers["traceparent"] = trace_parent
    return {
        "method": call.method,
        "url": call.path,
        "params": call.params,
        "content": call.content,
        "headers": headers,
    }


def _log_timeout(usual: httpx.Timeout, follow: bool) -> httpx.Timeout:
    """No read timeout: a task may be silent for any time."""
    return httpx.Timeout(None, connect=usual.connect, write=usual.write, pool=usual.pool) if follow else usual
