"""The HTTP request of a callback, sent only to the address that was checked."""

import asyncio
from collections.abc import Mapping
from typing import Final

import httpx

from dagmaster.certificates import trusted_authorities
from dagmaster.url_policy import Target

MAX_ANSWER_BYTES: Final = 4096


async def send(target: Target, body: bytes, headers: Mapping[str, str], timeout: float) -> int:
    """POST the body; returns the status of the response. Follows no redirects and uses no proxy."""
    sent = {**headers, "host": target.authority, "content-type": "application/json", "accept-encoding": "identity"}
    limits = {"sni_hostname": target.host, "timeout": httpx.Timeout(timeout).as_dict()}
    request = httpx.Request("POST", target.url, headers=sent, content=body, extensions=limits)
    # The bare transport: a client would follow redirects, keep cookies and log the URL.
    async with (
        asyncio.timeout(timeout),
        httpx.AsyncHTTPTransport(verify=trusted_authorities(trust_env=False), trust_env=False) as transport,
    ):
        response = await transport.handle_async_request(request)
        try:
            await _read_a_little(response)
        finally:
            await response.aclose()
    return response.status_code


async def _read_a_little(response: httpx.Response) -> None:
    """Read enough of the response to end the request cleanly."""
    size = 0
    async for chunk in response.aiter_raw():
        size += len(chunk)
        if size >= MAX_ANSWER_BYTES:
            return
