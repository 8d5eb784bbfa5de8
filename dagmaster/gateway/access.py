"""Authentication and authorisation. Every route declares its roles; an app with one that does not will not start."""

from dataclasses import dataclass
from hashlib import sha256
from time import monotonic
from typing import Annotated, Any, Final

from fastapi import Depends
from fastapi.requests import HTTPConnection

from dagmaster.errors import Forbidden, Unauthorized
from dagmaster.gateway.services import Services
from dagmaster.http.access import find_decision, presented_key
from dagmaster.model.access import Role
from dagmaster.store.gateway import KeyHolder, find_key_holder

TRUST_SECONDS: Final = 5.0
MAX_KNOWN: Final = 1000


class Keyring:
    """Caches keys for a few seconds; a revoked key works until its entry expires."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._known: dict[str, tuple[float, KeyHolder]] = {}

    async def find(self, text: str) -> KeyHolder | None:
        name = sha256(text.encode()).hexdigest()
        if (known := self._known.get(name)) and known[0] > monotonic():
            return known[1]
        async with self._services.connection() as conn:
            holder = await find_key_holder(conn, text)
        if holder is None:
            self._known.pop(name, None)
            return None
        if len(self._known) >= MAX_KNOWN:
            self._known.clear()
        self._known[name] = (monotonic() + TRUST_SECONDS, holder)
        return holder


@dataclass(frozen=True, slots=True)
class Allow:
    """The roles that may call a route; None allows everybody, with or without a key."""

    roles: frozenset[Role] | None

    async def __call__(self, request: HTTPConnection) -> None:
        if self.roles is None or getattr(request.state, "caller", None) is not None:
            return  # Admitted before the body was read; do not check and count again.
        services: Services = request.app.state.services
        text = presented_key(request)
        if not text:
            raise Unauthorized
        caller = await request.app.state.keyring.find(text)
        if caller is None:
            raise Unauthorized("the API key is unknown, revoked or expired")
        services.limiter.take(caller.name)
        if caller.role not in self.roles:
            allowed = " or ".join(role for role in Role if role in self.roles)
            raise Forbidden(f"a key of role {caller.role} may not do that; it takes {allowed}")
        if caller.role is Role.PARTNER and caller.platform_id is None:
            raise Forbidden("this key is not bound to a platform; ask its issuer for one that is")
        request.state.caller = caller


async def admit(request: HTTPConnection) -> None:
    """Before the body is read. Raises Unauthorized, Forbidden or RateLimited."""
    allow = find_decision(request.scope.get("route"), Allow)
    if allow is not None:
        await allow(request)


def _allow(*roles: Role) -> Any:
    return Depends(Allow(frozenset(roles)))


EVERYBODY = Depends(Allow(None))
SUBMITTERS = _allow(Role.ADMIN, Role.OPERATOR, Role.PARTNER)
READERS = _allow(Role.ADMIN, Role.OPERATOR, Role.REVIEWER, Role.PARTNER)
REVIEWERS = _allow(Role.ADMIN, Role.OPERATOR, Role.REVIEWER)
OPERATORS = _allow(Role.ADMIN, Role.OPERATOR)


async def caller_from_state(request: HTTPConnection) -> KeyHolder:
    """The caller that the route's `Allow` has admitted."""
    caller: KeyHolder = request.state.caller
    return caller


Caller = Annotated[KeyHolder, Depends(caller_from_state)]


def check_platform(caller: KeyHolder, platform_id: str | None) -> None:
    if caller.platform_id is not None and platform_id not in (None, caller.platform_id):
        raise Forbidden(f"this key is for platform {caller.platform_id!r}, not {platform_id!r}")
