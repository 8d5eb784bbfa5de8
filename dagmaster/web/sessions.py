"""Browser sessions: a signed cookie that names the key, and a CSRF token that every change must carry.

The cookie does not contain the key. It is valid only as long as the key that it names.
"""

import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass
from hashlib import sha256
from secrets import token_urlsafe
from time import time
from typing import Final

import orjson
from fastapi.requests import HTTPConnection
from fastapi.responses import Response

COOKIE: Final = "dagmaster_session"
CSRF_HEADER: Final = "x-csrf-token"
SESSION_SECONDS: Final = 12 * 3600
SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})


@dataclass(frozen=True, slots=True)
class Session:
    key_id: str
    nonce: str
    expires_at: int

    def csrf(self, secret: bytes) -> str:
        """Known to our pages, not to other sites."""
        return _sign(secret, f"csrf:{self.nonce}".encode())

    def sealed(self, secret: bytes) -> str:
        body = urlsafe_b64encode(orjson.dumps([self.key_id, self.nonce, self.expires_at])).decode()
        return f"{body}.{_sign(secret, body.encode())}"


def new_session(key_id: str) -> Session:
    return Session(key_id, token_urlsafe(16), int(time()) + SESSION_SECONDS)


def open_session(text: str, secret: bytes) -> Session | None:
    """None if the cookie is forged, malformed or expired."""
    # Headers may contain any bytes; a value that cannot be encoded has no valid signature.
    body, _, signature = text.encode(errors="replace").partition(b".")
    if not hmac.compare_digest(_sign(secret, body).encode(), signature):
        return None
    match orjson.loads(urlsafe_b64decode(body)):
        case [str(key_id), str(nonce), int(expires_at)] if expires_at > time():
            return Session(key_id, nonce, expires_at)
    return None


def remember(request: HTTPConnection, response: Response, session: Session, secret: bytes) -> None:
    response.set_cookie(
        COOKIE,
        session.sealed(secret),
        max_age=SESSION_SECONDS,
        httponly=True,
        samesite="lax",
        secure="https" in (request.url.scheme, request.headers.get("x-forwarded-proto")),
        path="/",
    )


def forget(response: Response) -> None:
    response.delete_cookie(COOKIE, path="/")


def _sign(secret: bytes, text: bytes) -> str:
    return urlsafe_b64encode(hmac.digest(secret, text, sha256)).decode().rstrip("=")
