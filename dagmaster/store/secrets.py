"""Secrets of the fleet that nobody has to choose."""

from secrets import token_urlsafe

from dagmaster.store.connect import Connection
from dagmaster.store.statements import run

SECRET_BYTES = 32


async def get_secret(conn: Connection, name: str) -> bytes:
    """The same for every process of the fleet; whoever is first makes it."""
    found = await _find(conn, name)
    if found is None:
        await run(conn, "make_secret", {"name": name, "value": token_urlsafe(SECRET_BYTES)})
        found = await _find(conn, name)
    assert found is not None, "a secret was removed while it was being read"
    return found


async def _find(conn: Connection, name: str) -> bytes | None:
    row = await (await run(conn, "read_secret", {"name": name})).fetchone()
    return row["value"].encode() if row else None
