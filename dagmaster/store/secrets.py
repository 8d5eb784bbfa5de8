"""Secrets of the fleet: one for each purpose, so that a leaked one reveals no other."""

import hmac
from hashlib import sha256
from secrets import token_urlsafe

from dagmaster.store.connect import Connection
from dagmaster.store.statements import fetch_one, run

SECRET_BYTES = 32
CALLBACK_SIGNING = "callback_signing"
TASK_TOKENS = "task_tokens"
SESSIONS = "sessions"
SEALING = "sealed_values"


async def get_secret(conn: Connection, name: str, *, chosen: bytes | None = None) -> bytes:
    """The same for every process of the fleet: derived from the one that was `chosen`, or made by whoever is first."""
    if chosen is not None:
        return derive(chosen, name)
    secret = await _find(conn, name)
    if secret is None:
        await run(conn, "make_secret", {"name": name, "value": token_urlsafe(SECRET_BYTES)})
        secret = await _find(conn, name)
    assert secret is not None, "a secret was removed while it was being read"
    return secret


def derive(chosen: bytes, name: str) -> bytes:
    return hmac.new(chosen, name.encode(), sha256).hexdigest().encode()


async def _find(conn: Connection, name: str) -> bytes | None:
    row = await fetch_one(conn, "read_secret", {"name": name})
    return row["value"].encode() if row else None
