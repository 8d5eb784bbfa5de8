"""The chore that calls back when jobs have ended."""

import asyncio
import base64
import hmac
import logging
from dataclasses import dataclass, field
from hashlib import sha256
from http import HTTPStatus
from importlib import import_module
from random import Random
from time import time
from typing import Any
from urllib.parse import quote, urlsplit

import orjson

from dagmaster.orchestrator.shared_connection import SharedConnection
from dagmaster.store.callbacks import Callback, claim_callbacks, close_callback, postpone_callback
from dagmaster.store.connect import Connection
from dagmaster.store.secrets import CALLBACK_SIGNING, get_secret
from dagmaster.url_policy import Policy, Refused, Resolver, look_up, resolve

log = logging.getLogger(__name__)

AT_ONCE = 16
LEASE_SECONDS = 30.0
FIRST_DELAY_SECONDS = 5.0
MAX_DELAY_SECONDS = 3600.0
POLL_SECONDS = 1.0
REQUESTS = "dagmaster.orchestrator.callback_requests"


@dataclass(frozen=True, slots=True)
class CallbackOptions:
    """`secret` is the operator's; calls are signed with a key derived from it."""

    policy: Policy = field(default_factory=Policy)
    max_attempts: int = 12
    timeout_seconds: float = 10.0
    first_delay_seconds: float = FIRST_DELAY_SECONDS
    public_url: str | None = None
    gateway_url: str | None = None
    secret: bytes | None = None
    look_up: Resolver = look_up


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a call. Only transient errors are retried."""

    error: str | None = None
    status: int | None = None
    is_final: bool = False


class Callbacks:
    """Calls run concurrently: a slow receiver delays only its own."""

    def __init__(self, options: CallbackOptions) -> None:
        self._options = options
        self._secret: bytes | None = None
        self._rng = Random()

    async def run_once(self, shared: SharedConnection) -> None:
        """Returns when no call is due or running."""
        under_way: set[asyncio.Task[None]] = set()
        try:
            while True:
                under_way |= await self._begin(shared, AT_ONCE - len(under_way))
                if not under_way:
                    return
                done, under_way = await asyncio.wait(
                    under_way, timeout=POLL_SECONDS, return_when=asyncio.FIRST_COMPLETED
                )
                for call in done:
                    call.result()
        finally:
            for call in under_way:
                call.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)

    async def _begin(self, shared: SharedConnection, limit: int) -> set[asyncio.Task[None]]:
        if limit == 0:
            return set()
        lease = self._options.timeout_seconds + LEASE_SECONDS
        async with shared.turn() as conn:
            claimed = await claim_callbacks(conn, limit=limit, lease_seconds=lease)
            if claimed and self._secret is None:
                self._secret = await get_secret(conn, CALLBACK_SIGNING, chosen=self._options.secret)
        return {asyncio.create_task(self._make(shared, callback)) for callback in claimed}

    async def _make(self, shared: SharedConnection, callback: Callback) -> None:
        """Release the shared connection while the receiver works."""
        assert self._secret is not None
        answer = await self._call(callback, self._secret)
        async with shared.turn() as conn:
            await self._conclude(conn, callback, answer)

    async def _conclude(self, conn: Connection, callback: Callback, answer: Answer) -> None:
        host = _host(callback.url)
        if answer.error is None or answer.is_final or callback.attempts >= self._options.max_attempts:
            if answer.error is not None:
                log.warning("gave up the callback of job %d to %s: %s", callback.job_id, host, answer.error)
            await close_callback(conn, callback, host=host, error=answer.error, response_status=answer.status)
            return
        delay = retry_seconds(callback.attempts, self._options.first_delay_seconds, self._rng)
        await postpone_callback(conn, callback, delay_seconds=delay, error=answer.error, response_status=answer.status)

    async def _call(self, callback: Callback, secret: bytes) -> Answer:
        seconds = self._options.timeout_seconds
        try:
            async with asyncio.timeout(seconds):
                target = await resolve(callback.url, self._options.policy, self._options.look_up)
                body = body_of(callback, self._options)
                # Loaded for the first call: its HTTP library takes 7 MB, and most processes never call.
                requests: Any = import_module(REQUESTS)
                status: int = await requests.send(target, body, headers_of(callback, secret, body), seconds)
        except Refused as error:
            return Answer(str(error), is_final=True)
        except TimeoutError:
            return Answer(f"no response within {seconds:g} s")
        except Exception as error:  # noqa: BLE001 - address and response may be broken in any way; other calls must continue
            return Answer(_describe(error))
        if HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES:
            return Answer(status=status)
        return Answer(f"the receiver returned {status}", status, is_final=status == HTTPStatus.GONE)


def body_of(callback: Callback, options: CallbackOptions) -> bytes:
    """The sender of a request knows its own request id, not the job's; it is sent to the gateway if there is one."""
    public_id = callback.request_id if callback.request_id is not None else str(callback.job_id)
    base, path = options.public_url, f"/api/v1/jobs/{callback.job_id}"
    if callback.request_id is not None:
        quoted = quote(callback.request_id, safe="")
        path = f"/api/v1/requests/{quoted}"
        if options.gateway_url is not None:
            base, path = options.gateway_url, f"/api/platform/status/{quoted}"
    return orjson.dumps(
        {"id": public_id, "status": callback.job_status, "result_url": f"{base}{path}" if base else None}
    )


def headers_of(callback: Callback, secret: bytes, body: bytes) -> dict[str, str]:
    """A repeated call keeps its id, so that the receiver can recognise it."""
    message_id, timestamp = f"callback_{callback.callback_id}", int(time())
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": sign(secret, message_id, timestamp, body),
        "user-agent": "dagmaster",
    }


def sign(secret: bytes, message_id: str, timestamp: int, body: bytes) -> str:
    """Sign by the Standard Webhooks convention, so that the receiver can verify sender and time."""
    signed = b"%s.%d.%s" % (message_id.encode(), timestamp, body)
    return "v1," + base64.b64encode(hmac.digest(secret, signed, sha256)).decode()


def retry_seconds(attempts: int, first: float, rng: Random) -> float:
    """Exponential back-off up to an hour, with jitter so that a receiver is not overrun when it is back."""
    whole = min(first * 2.0 ** min(attempts - 1, 30), MAX_DELAY_SECONDS)
    return whole * rng.uniform(0.8, 1.2)


def _host(url: str) -> str:
    """The only part of a URL that may be logged: the rest may hold secrets."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def _describe(error: Exception) -> str:
    first_line = str(error).partition("\n")[0]
    return f"{type(error).__name__}: {first_line}" if first_line else type(error).__name__
