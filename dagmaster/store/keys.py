"""API keys: created, shown once, stored as a hash, revoked."""

import hmac
import re
from base64 import b32encode
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from hashlib import sha256
from secrets import token_bytes, token_urlsafe
from typing import Any, Final

import psycopg

from dagmaster.errors import Conflict, Invalid, UnknownKey
from dagmaster.model.access import PLATFORM_ROLES, Role
from dagmaster.store.connect import Connection, required
from dagmaster.store.platforms import get_platform
from dagmaster.store.statements import fetch, fetch_one, run

MAX_NAME_LENGTH: Final = 128
ID_LENGTH: Final = 12
SECRET_BYTES: Final = 32
_TEXT: Final = re.compile(r"dm_([a-z2-7]{12})_[A-Za-z0-9_-]{43}")


@dataclass(frozen=True, slots=True)
class NewKey:
    """`text` is the key itself, which is not stored."""

    key_id: str
    text: str


@dataclass(frozen=True, slots=True)
class Key:
    """`platform_id` is the platform that a partner or a reviewer acts for; None means all."""

    key_id: str
    name: str
    role: Role
    platform_id: str | None
    created_at: datetime
    created_by: str
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None


async def new_key(
    conn: Connection,
    *,
    name: str,
    role: Role,
    created_by: str,
    platform_id: str | None = None,
    expires_at: datetime | None = None,
    source_app: str = "cli",
) -> NewKey:
    """Raises Conflict if a key of this name is in use, and UnknownPlatform."""
    _check(name, expires_at)
    if platform_id is not None:
        await _check_platform(conn, role, platform_id)
    key_id = b32encode(token_bytes(SECRET_BYTES)).decode().lower()[:ID_LENGTH]
    text = f"dm_{key_id}_{token_urlsafe(SECRET_BYTES)}"
    values = {
        "key_id": key_id,
        "name": name,
        "role": role.value,
        "platform_id": platform_id,
        "key_hash": _hash(text),
        "actor": created_by,
        "expires_at": expires_at,
        "source_app": source_app,
    }
    try:
        await run(conn, "add_key", values)
    except psycopg.errors.UniqueViolation as error:
        raise Conflict(f"there is a key named {name!r} already; revoke it first, or choose another name") from error
    return NewKey(key_id, text)


async def check_first_key(conn: Connection, role: Role) -> None:
    """Raises Conflict for a first key that could not create others: from then on every caller needs a key."""
    if role is not Role.ADMIN and not await any_keys(conn):
        raise Conflict("the first key must have the role admin: with a key in use, only an admin can create others")


def _check(name: str, expires_at: datetime | None) -> None:
    if not name.strip() or not name.isprintable():
        raise Invalid("a key needs a name of printable characters, such as the name of the program that will use it")
    if len(name) > MAX_NAME_LENGTH:
        raise Invalid(f"the name of a key may have at most {MAX_NAME_LENGTH} characters, not {len(name)}")
    if expires_at is not None and expires_at <= datetime.now(UTC):
        raise Invalid(f"a key cannot expire in the past ({expires_at.isoformat()})")


async def _check_platform(conn: Connection, role: Role, platform_id: str) -> None:
    if role not in PLATFORM_ROLES:
        allowed = " and ".join(sorted(PLATFORM_ROLES))
        raise Invalid(f"a key of role {role} is for all platforms; only {allowed} keys may be for one")
    await get_platform(conn, platform_id)


async def find_key(conn: Connection, text: str) -> Key | None:
    """None if the text is not a key, or the key is unknown, revoked or expired."""
    fingerprint = fingerprint_of(text)
    if fingerprint is None:
        return None
    key_id, key_hash = fingerprint
    row = await fetch_one(conn, "find_key", {"key_id": key_id})
    if row is None or not hmac.compare_digest(row["key_hash"], key_hash):
        return None
    return await _used(conn, row)


def fingerprint_of(text: str) -> tuple[str, str] | None:
    """The id and the hash of a key; None if the text is not a key."""
    match = _TEXT.fullmatch(text)
    return (match[1], _hash(text)) if match is not None else None


async def find_key_by_id(conn: Connection, key_id: str) -> Key | None:
    """For a session that has shown the key before; None if it was revoked or has expired."""
    row = await fetch_one(conn, "find_key", {"key_id": key_id})
    return await _used(conn, row) if row else None


async def _used(conn: Connection, row: Mapping[str, Any]) -> Key:
    if row["is_use_old"]:
        await run(conn, "touch_key", {"key_id": row["key_id"]})
    return _key(row)


async def list_keys(conn: Connection) -> list[Key]:
    """All keys, oldest first, including revoked ones."""
    return [_key(row) for row in await fetch(conn, "list_keys")]


async def revoke_key(conn: Connection, key_or_name: str, *, actor: str, source_app: str = "cli") -> Key:
    values = {"key_or_name": key_or_name, "actor": actor, "source_app": source_app}
    unknown = UnknownKey(f"no key in use has the id or name {key_or_name!r}; `dagmaster keys list` shows them")
    return _key(required(await fetch_one(conn, "revoke_key", values), unknown))


async def any_keys(conn: Connection) -> bool:
    """Whether any key was not revoked. An expired key counts: access must not open by itself."""
    [row] = await fetch(conn, "any_keys")
    return bool(row["is_there"])


def _hash(text: str) -> str:
    # Keys are random and long, so a slow hash adds no security.
    return sha256(text.encode()).hexdigest()


def _key(row: Mapping[str, Any]) -> Key:
    columns = {field.name: row[field.name] for field in fields(Key)}
    return Key(**columns | {"role": Role(row["role"])})
