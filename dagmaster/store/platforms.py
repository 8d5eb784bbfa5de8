"""Platforms: the systems of partners, whose references identify assets."""

import re
from collections.abc import Mapping
from typing import Any, Final

from dagmaster.errors import Conflict, Invalid, UnknownPlatform
from dagmaster.model.asset import PLATFORM_ID_PATTERN, Platform
from dagmaster.store.audit import note_command
from dagmaster.store.connect import Connection, Row
from dagmaster.store.statements import fetch, fetch_one

CHANGEABLE: Final = frozenset({"display_name", "optional_refs", "is_active", "allowed_workflows"})


async def find_platform(conn: Connection, platform_id: str) -> Platform | None:
    row = await _find_row(conn, platform_id)
    return _platform(row) if row else None


async def list_platforms(conn: Connection) -> list[Row]:
    """All platforms by id, including inactive ones."""
    return await fetch(conn, "list_platforms", {"platform_id": None})


async def get_platform(conn: Connection, platform_id: str) -> Row:
    """Raises UnknownPlatform."""
    row = await _find_row(conn, platform_id)
    if row is None:
        raise await unknown_platform(conn, platform_id)
    return row


async def unknown_platform(conn: Connection, platform_id: str) -> UnknownPlatform:
    """The error, with the known platforms."""
    known = ", ".join(row["platform_id"] for row in await list_platforms(conn))
    hint = f"there are {known}" if known else "there are none; `dagmaster platforms add` adds one"
    return UnknownPlatform(f"no platform has the id {platform_id[:80]!r}; {hint}")


async def add_platform(conn: Connection, platform: Platform, *, actor: str | None, source_app: str = "cli") -> Row:
    """Raises Conflict if the id exists, and Invalid for an invalid id or invalid references."""
    if re.match(PLATFORM_ID_PATTERN, platform.platform_id) is None:
        rule = "a lower-case letter, then lower-case letters, digits, '_' or '-', at most 64 in all"
        raise Invalid(f"{platform.platform_id[:80]!r} cannot be the id of a platform: it must be {rule}")
    refs = [*platform.required_refs, *platform.optional_refs]
    if not platform.required_refs or not all(refs):
        raise Invalid("a platform needs the name of at least one reference that identifies its assets")
    if repeated := sorted({name for name in refs if refs.count(name) > 1}):
        raise Invalid(f"a reference is either required or optional, and named once: {', '.join(repeated)}")
    values = {
        "platform_id": platform.platform_id,
        "display_name": platform.display_name,
        "required_refs": list(platform.required_refs),
        "optional_refs": list(platform.optional_refs),
        "is_active": platform.is_active,
        "allowed_workflows": None if platform.allowed_workflows is None else list(platform.allowed_workflows),
    }
    async with conn.transaction():
        rows = await fetch(conn, "add_platform", values)
        if not rows:
            raise Conflict(f"platform {platform.platform_id!r} exists already; change it instead")
        await note_command(conn, {"command": "platforms.add", "actor": actor, **values}, source_app=source_app)
    return rows[0]


async def change_platform(
    conn: Connection, platform_id: str, changes: Mapping[str, Any], *, actor: str | None, source_app: str = "cli"
) -> Row:
    """Set these columns. A null `allowed_workflows` allows every workflow. Raises UnknownPlatform."""
    if not changes.keys() <= CHANGEABLE:
        raise Invalid(f"only {', '.join(sorted(CHANGEABLE))} of a platform can change")
    values = {
        **dict.fromkeys(CHANGEABLE),
        **changes,
        "platform_id": platform_id,
        "changes_workflows": "allowed_workflows" in changes,
    }
    async with conn.transaction():
        required = set((await get_platform(conn, platform_id))["required_refs"])
        if repeated := sorted(required.intersection(changes.get("optional_refs") or ())):
            raise Invalid(f"platform {platform_id!r} requires these references already: {', '.join(repeated)}")
        [row] = await fetch(conn, "change_platform", values)
        note = {"command": "platforms.change", "actor": actor, "platform_id": platform_id, "changes": dict(changes)}
        await note_command(conn, note, source_app=source_app)
    return row


async def seed_platforms(conn: Connection, *, actor: str | None, source_app: str = "cli") -> int:
    """Add the missing default platforms; returns their number."""
    async with conn.transaction():
        [row] = await fetch(conn, "seed_platforms")
        added: int = row["added"]
        note = {"command": "bootstrap.seed-platforms", "actor": actor, "added": added}
        await note_command(conn, note, source_app=source_app)
    return added


async def _find_row(conn: Connection, platform_id: str) -> Row | None:
    return await fetch_one(conn, "list_platforms", {"platform_id": platform_id})


def _platform(row: Row) -> Platform:
    allowed = row["allowed_workflows"]
    return Platform(
        platform_id=row["platform_id"],
        display_name=row["display_name"],
        required_refs=tuple(row["required_refs"]),
        optional_refs=tuple(row["optional_refs"]),
        is_active=row["is_active"],
        allowed_workflows=None if allowed is None else tuple(allowed),
    )
