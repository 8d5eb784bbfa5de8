"""Authentication and authorisation. Every route declares its roles; a server with one that does not will not start."""

import hmac
from base64 import urlsafe_b64encode
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from time import monotonic
from typing import Annotated, Any

from fastapi import Depends
from fastapi.requests import HTTPConnection

from dagmaster.errors import Forbidden, Unauthorized, UnknownJob
from dagmaster.http.access import find_decision, presented_key
from dagmaster.ids import JobId, TaskId
from dagmaster.model.access import Role
from dagmaster.store.connect import AWAY, Connection, Pool
from dagmaster.store.jobs import get_job_head
from dagmaster.store.keys import Key, any_keys, find_key, find_key_by_id
from dagmaster.store.secrets import SESSIONS, TASK_TOKENS, get_secret
from dagmaster.web.services import Conn, Services, ServicesDep
from dagmaster.web.sessions import COOKIE, CSRF_HEADER, SAFE_METHODS, open_session

LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
PROXY_HEADERS = ("forwarded", "x-forwarded-for", "x-real-ip")
TRUST_SECONDS = 5.0
OPEN_SECONDS = 0.5
MAX_KNOWN = 1000
TOKEN_PREFIX = "dmt_"
UNKNOWN_KEY = "the API key is unknown, revoked or expired"

OPERATING = frozenset({Role.ADMIN, Role.OPERATOR})
SUBMITTING = OPERATING | {Role.PARTNER}
REVIEWING = OPERATING | {Role.REVIEWER}
READING = REVIEWING | {Role.VIEWER}
READING_OWN = READING | {Role.PARTNER}


@dataclass(frozen=True, slots=True)
class Caller:
    """`token` was sent instead of a key and is valid for one task; the route checks it against the task.

    `csrf` is the token that the pages of a signed-in user send with every change. `platform_id` is the one platform
    whose assets a partner or a reviewer may see; None means all.
    """

    name: str
    role: Role
    token: str | None = None
    key_id: str | None = None
    csrf: str = ""
    platform_id: str | None = None

    @property
    def is_partner(self) -> bool:
        return self.role is Role.PARTNER

    @property
    def is_platform_reviewer(self) -> bool:
        """Sees only the assets of one platform: jobs and the fleet belong to all platforms."""
        return self.role is Role.REVIEWER and self.platform_id is not None


class Keyring:
    """Caches keys for a few seconds; a revoked key works until its entry expires."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._known: dict[str, tuple[float, Caller]] = {}
        self._any: tuple[float, bool] = (0.0, True)
        self._session_secret: bytes | None = None

    async def find(self, text: str) -> Caller | None:
        return await self._look_up(sha256(text.encode()).hexdigest(), partial(find_key, text=text))

    async def find_by_id(self, key_id: str) -> Caller | None:
        return await self._look_up(f"id:{key_id}", partial(find_key_by_id, key_id=key_id))

    async def still_admits(self, caller: Caller) -> bool:
        """Whether the key of an open connection is still valid, or the database cannot tell."""
        if caller.key_id is None:
            return True
        try:
            return await self.find_by_id(caller.key_id) is not None
        except AWAY:
            return True

    async def session_secret(self, chosen: bytes | None) -> bytes:
        if self._session_secret is None:
            async with self._pool.connection() as conn:
                self._session_secret = await get_secret(conn, SESSIONS, chosen=chosen)
        return self._session_secret

    async def _look_up(self, name: str, find: Callable[[Connection], Awaitable[Key | None]]) -> Caller | None:
        if (known := self._known.get(name)) and known[0] > monotonic():
            return known[1]
        async with self._pool.connection() as conn:
            key = await find(conn)
        if key is None:
            self._known.pop(name, None)
            return None
        if len(self._known) >= MAX_KNOWN:
            self._known.clear()
        caller = Caller(key.name, key.role, key_id=key.key_id, platform_id=key.platform_id)
        self._known[name] = (monotonic() + TRUST_SECONDS, caller)
        return caller

    async def has_any(self) -> bool:
        until, is_there = self._any
        if monotonic() < until:
            return is_there
        async with self._pool.connection() as conn:
            is_there = await any_keys(conn)
        # The first key must take effect soon.
        self._any = (monotonic() + (TRUST_SECONDS if is_there else OPEN_SECONDS), is_there)
        return is_there


async def caller_of(request: HTTPConnection, services: ServicesDep) -> Caller:
    """Raises Unauthorized."""
    presented = presented_key(request)
    if presented.startswith(TOKEN_PREFIX):
        return Caller("task", Role.WORKER, token=presented)
    keyring: Keyring = request.app.state.keyring
    if presented:
        if (caller := await keyring.find(presented)) is not None:
            return caller
        raise Unauthorized(UNKNOWN_KEY)
    if (caller := await _signed_in(request, services)) is not None:
        return caller
    if await keyring.has_any():
        raise Unauthorized
    if not _is_local(request, services):
        raise Unauthorized("without API keys only this machine is served; create one with `dagmaster keys create`")
    return Caller("", Role.ADMIN)


async def _signed_in(request: HTTPConnection, services: Services) -> Caller | None:
    """The caller of a browser session. Changes need the CSRF token, which only our own pages have."""
    cookie = request.cookies.get(COOKIE)
    if cookie is None:
        return None
    keyring: Keyring = request.app.state.keyring
    secret = await keyring.session_secret(services.settings.chosen_secret())
    session = open_session(cookie, secret)
    caller = await keyring.find_by_id(session.key_id) if session else None  # A session ends with its key.
    if session is None or caller is None:
        return None
    token = session.csrf(secret)
    if request.scope["type"] == "websocket":
        is_ours = _is_same_origin(request)
    else:
        sent_token = request.headers.get(CSRF_HEADER, "")
        is_ours = request.scope["method"] in SAFE_METHODS or hmac.compare_digest(sent_token.encode(), token.encode())
    if not is_ours:
        raise Forbidden("this request did not come from a page of this server; reload the page and try again")
    return replace(caller, csrf=token)


def _is_local(request: HTTPConnection, services: Services) -> bool:
    """Whether the request comes from this machine and is addressed to it, without a proxy or a page of another site."""
    if not services.is_local or any(name in request.headers for name in PROXY_HEADERS):
        return False
    client = request.client.host if request.client else ""
    named = _host(request.headers.get("host", ""))
    origin = request.headers.get("origin")
    is_ours = origin is None or origin in services.settings.cors_origins or _is_same_origin(request)
    return client in LOOPBACK and named in LOOPBACK and is_ours


def _is_same_origin(request: HTTPConnection) -> bool:
    """A page on another port is another application."""
    return request.headers.get("origin", "").partition("//")[2] == request.headers.get("host")


def _host(address: str) -> str:
    return address.rpartition("]")[0].removeprefix("[") if address.startswith("[") else address.partition(":")[0]


@dataclass(frozen=True, slots=True)
class Allow:
    """The roles that may call a route; None allows everybody, with or without a key.

    A task's token is accepted only by a route that `takes_tokens`, which must check it. Reviewers of one platform may
    call only routes that are `by_platform`, which must limit them to that platform.
    """

    roles: frozenset[Role] | None
    takes_tokens: bool = False
    by_platform: bool = False

    async def __call__(self, request: HTTPConnection, services: ServicesDep) -> None:
        if self.roles is None:
            return
        caller = await caller_of(request, services)
        request.state.caller = caller
        if caller.token is not None and not self.takes_tokens:
            raise Unauthorized("a task's token can only report on that task; this needs an API key")
        if caller.role not in self.roles:
            needed = " or ".join(role for role in Role if role in self.roles)
            raise Forbidden(f"a key of role {caller.role} may not do that; it takes {needed}")
        if caller.is_platform_reviewer and not self.by_platform:
            raise Forbidden(f"this key is for the assets of platform {caller.platform_id!r} only")


def _allow(roles: frozenset[Role], *, by_platform: bool = False) -> Any:
    return Depends(Allow(roles, by_platform=by_platform))


EVERYBODY = Depends(Allow(None))
READERS = _allow(READING)
READERS_OF_OWN = _allow(READING_OWN)
SUBMITTERS = _allow(SUBMITTING)
OPERATORS = _allow(OPERATING)
WORKERS = _allow(frozenset({Role.ADMIN, Role.WORKER}))
REPORTERS = Depends(Allow(frozenset({Role.ADMIN, Role.WORKER}), takes_tokens=True))
MACHINES = _allow(READING | {Role.WORKER})
ADMINS = _allow(frozenset({Role.ADMIN}))
# For assets: these routes limit a caller with a platform to its assets.
ASSET_READERS = _allow(READING_OWN, by_platform=True)
# Partners have no pages for assets, and no layers.
ASSET_VIEWERS = _allow(READING, by_platform=True)
ASSET_SUBMITTERS = _allow(REVIEWING | {Role.PARTNER}, by_platform=True)
REVIEWERS = _allow(REVIEWING, by_platform=True)


async def caller_from_state(request: HTTPConnection) -> Caller:
    """The caller that the route's `Allow` has admitted."""
    caller: Caller = request.state.caller
    return caller


Admitted = Annotated[Caller, Depends(caller_from_state)]


async def visible_job(job_id: str, caller: Admitted, conn: Conn) -> dict[str, Any]:
    """The job of the path."""
    job = await get_job_head(conn, as_job_id(job_id))
    check_visible(job, caller)
    return job


def check_visible(job: Mapping[str, Any], caller: Caller) -> None:
    """Raises UnknownJob for a partner's view of another submitter's job."""
    if caller.is_partner and job["submitted_by"] != caller.name:
        raise UnknownJob(f"there is no job {job['job_id']}; `dagmaster jobs` lists them")


def as_job_id(text: str) -> JobId:
    if not (text.isascii() and text.isdecimal() and len(text) <= 19 and 0 < int(text) < 2**63):
        raise UnknownJob(f"there is no job {text[:40]!r}")
    return JobId(int(text))


Job = Annotated[dict[str, Any], Depends(visible_job, scope="function")]


async def task_token(conn: Connection, services: Services, task_id: TaskId) -> str:
    """A token that permits reports for this attempt and nothing else."""
    key = await get_secret(conn, TASK_TOKENS, chosen=services.settings.chosen_secret())
    digest = hmac.digest(key, task_id.encode(), sha256)
    return TOKEN_PREFIX + urlsafe_b64encode(digest).decode().rstrip("=")


async def check_task(conn: Connection, services: Services, caller: Caller, task_id: TaskId) -> None:
    """Raises Forbidden if the caller's token is for another task, or forged."""
    if caller.token is None:
        return
    if not hmac.compare_digest(caller.token.encode(), (await task_token(conn, services, task_id)).encode()):
        raise Forbidden("this token is not for that task")


async def admit(request: HTTPConnection) -> None:
    """Before the body is read. Raises Unauthorized or Forbidden."""
    allow = find_decision(request.scope.get("route"), Allow)
    if allow is not None:
        await allow(request, request.app.state.services)
