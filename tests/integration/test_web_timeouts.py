"""Idle connections are closed, and bodies are not read before the key is checked."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import pytest
from fleet import single
from web import web

from dagmaster.http import admission
from dagmaster.model.access import Role
from dagmaster.web import server

SHORT = 0.2
LONGER = 1.0  # Enough for a busy machine to send a whole request.
HEAD = "POST /api/v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n"


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(url).port)
    try:
        yield reader, writer
    finally:
        writer.close()


async def answer(reader: asyncio.StreamReader) -> bytes:
    """Everything until the server closes the connection."""
    async with asyncio.timeout(60):
        return await reader.read()


@pytest.mark.parametrize("head", ["", "GET /livez HTTP/1.1\r\nHost: 127", "GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n"])
async def test_a_client_that_sends_no_request_in_time_is_disconnected(
    dsn: str, monkeypatch: pytest.MonkeyPatch, head: str
) -> None:
    monkeypatch.setattr(server, "HEADER_SECONDS", SHORT)
    async with web(dsn) as api, api.real_server() as url, connected(url) as (reader, writer):
        writer.write(head.encode())
        assert await answer(reader) == b""


async def test_a_second_request_has_its_own_timeout(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HEADER_SECONDS", LONGER)
    async with web(dsn) as api, api.real_server() as url, connected(url) as (reader, writer):
        writer.write(b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        await asyncio.wait_for(reader.readuntil(b"}"), 60)
        await asyncio.sleep(LONGER + SHORT)
        writer.write(b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert b"200" in await asyncio.wait_for(reader.readuntil(b"}"), 60)
        writer.write(b"GET /livez HTTP/1.1\r\n")
        assert await answer(reader) == b""


@pytest.mark.parametrize("limit", ["CHUNK_SECONDS", "WHOLE_BODY_SECONDS"])
async def test_a_body_that_does_not_arrive_times_out(dsn: str, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    monkeypatch.setattr(admission, limit, SHORT)
    async with web(dsn, single()) as api, api.real_server() as url, connected(url) as (reader, writer):
        writer.write(HEAD.format(length=100).encode() + b'\r\n{"workflow_id"')
        response = await answer(reader)
    assert response.startswith(b"HTTP/1.1 408")
    assert b'"code":"timeout"' in response


@pytest.mark.parametrize("key", [None, "dm_forged", "viewer"])
async def test_a_key_is_checked_before_the_body_is_read(dsn: str, key: str | None) -> None:
    async with web(dsn, single()) as api, api.real_server() as url, connected(url) as (reader, writer):
        viewer = (await api.key("somebody", Role.VIEWER))["Authorization"]
        authorization = viewer if key == "viewer" else f"Bearer {key}"
        header = f"Authorization: {authorization}\r\n" if key else ""
        writer.write(f"{HEAD.format(length=4_000_000)}{header}\r\n".encode())  # The body is never sent.
        response = await answer(reader)
    assert response.startswith(b"HTTP/1.1 403" if key == "viewer" else b"HTTP/1.1 401")


async def test_an_invalid_body_without_a_key_is_refused_for_the_key(dsn: str) -> None:
    async with web(dsn, single()) as api:
        await api.key("me", Role.ADMIN)
        response = await api.client.post(
            "/api/v1/jobs", content=b"{nonsense", headers={"content-type": "application/json"}
        )
        assert response.status_code == 401
        assert response.headers["WWW-Authenticate"] == "Bearer"
