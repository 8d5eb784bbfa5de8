"""How a callback is made: signed, to the address that was checked, and to no other."""

import asyncio
import base64
import hmac
import ssl
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from typing import Final

import httpx

from dagmaster.url_policy import Target

MAX_ANSWER_BYTES: Final = 4096


def sign(secret: bytes, message_id: str, timestamp: int, body: bytes) -> str:
    """After the Standard Webhooks convention: the receiver can tell who sent it, and when."""
    signed = b"%s.%d.%s" % (message_id.encode(), timestamp, body)
    return "v1," + base64.b64encode(hmac.digest(secret, signed, sha256)).decode()


async def send(target: Target, body: bytes, headers: Mapping[str, str], timeout: float) -> int:
    """POST it and give the status of the answer. No redirect is followed and no proxy is used."""
    given = {**headers, "host": target.authority, "content-type": "application/json", "accept-encoding": "identity"}
    limits = {"sni_hostname": target.host, "timeout": httpx.Timeout(timeout).as_dict()}
    request = httpx.Request("POST", target.url, headers=given, content=body, extensions=limits)
    # The transport alone: a client would follow, remember and log more than is wanted here.
    async with (
        asyncio.timeout(timeout),
        httpx.AsyncHTTPTransport(verify=_trust(), trust_env=False) as transport,
    ):
        response = await transport.handle_async_request(request)
        try:
            await _read_a_little(response)
        finally:
            await response.aclose()
    return response.status_code


async def _read_a_little(response: httpx.Response) -> None:
    """Enough for a polite end of the call."""
    size = 0
    async for chunk in response.aiter_raw():
        size += len(chunk)
        if size >= MAX_ANSWER_BYTES:
            return


@cache
def _trust() -> ssl.SSLContext:
    return httpx.create_ssl_context(trust_env=False)
