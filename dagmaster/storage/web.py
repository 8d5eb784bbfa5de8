"""Files on allowed web servers."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import httpx

from dagmaster.certificates import trusted_authorities
from dagmaster.storage.errors import FileMissing, StorageUnavailable
from dagmaster.storage.references import WebFile
from dagmaster.storage.source import CHUNK_BYTES, Source

TIMEOUT_SECONDS: Final = 30


async def head(location: WebFile) -> Source:
    async with _opened(location) as answer:
        size = answer.headers.get("content-length", "")
        identity = answer.headers.get("etag") or answer.headers.get("last-modified") or ""

    async def read(offset: int, end: int | None = None) -> AsyncIterator[bytes]:
        async with _opened(location, offset) as answer:
            to_skip = offset if answer.status_code == httpx.codes.OK else 0
            async for chunk in answer.aiter_bytes(CHUNK_BYTES):
                if kept := chunk[to_skip:]:
                    yield kept
                to_skip = max(to_skip - len(chunk), 0)

    return Source(int(size) if size.isdecimal() else None, identity, read)


@asynccontextmanager
async def _opened(location: WebFile, offset: int = 0) -> AsyncIterator[httpx.Response]:
    """Redirects are not followed: they would lead to hosts that are not allowed."""
    headers = {"accept-encoding": "identity", **({"range": f"bytes={offset}-"} if offset else {})}
    try:
        async with (
            httpx.AsyncClient(
                timeout=TIMEOUT_SECONDS,
                follow_redirects=False,
                trust_env=False,
                verify=trusted_authorities(trust_env=False),
            ) as client,
            client.stream("GET", location.url, headers=headers) as answer,
        ):
            if answer.status_code in (httpx.codes.NOT_FOUND, httpx.codes.GONE):
                raise FileMissing(f"there is no file {location.reference}")
            if answer.status_code not in (httpx.codes.OK, httpx.codes.PARTIAL_CONTENT):
                reason = f"the server returned {answer.status_code}"
                raise StorageUnavailable(f"{location.reference} cannot be read: {reason}")
            yield answer
    except httpx.HTTPError as error:
        raise StorageUnavailable(f"{location.reference} cannot be reached: {type(error).__name__}") from error
