"""The role of the gateway in the database: it can read the gateway's views, and nothing else."""

import re
from typing import Final

import psycopg

from dagmaster.errors import Conflict, Forbidden, Invalid
from dagmaster.store.connect import Connection
from dagmaster.store.schema import check_schema
from dagmaster.store.statements import fetch

MARK: Final = "dagmaster: reads the views of the gateway"
MAX_CONNECTIONS: Final = 50
MIN_PASSWORD_LENGTH: Final = 12
_NAME: Final = re.compile(r"(?!pg_)[a-z_][a-z0-9_]{0,62}")


async def create_reader(conn: Connection, name: str, password: str) -> bool:
    """Create the role, or reset the password and rights of one that was created here; True if it is new.

    Raises Conflict if the role was not created here, or could still do more than read the views.
    """
    _check(name, password)
    await check_schema(conn)
    roles = await fetch(conn, "find_role", {"name": name, "mark": MARK})
    if roles and not roles[0]["is_reader"]:
        raise Conflict(f"the role {name!r} exists and is not a reader of the gateway; choose another name")
    values = {
        "name": name,
        "verifier": _verifier(conn, name, password),
        "mark": MARK,
        "connections": MAX_CONNECTIONS,
        "is_new": not roles,
    }
    try:
        async with conn.transaction():
            for row in await fetch(conn, "reader_statements", values):
                await conn.execute(row["statement"].encode())
            surplus = [row["surplus"] for row in await fetch(conn, "reader_surplus", {"name": name})]
            if surplus:
                raise Conflict(
                    f"the role {name!r} would still have {', '.join(surplus)}; revoke that as the database's owner, "
                    "then run this again"
                )
    except psycopg.errors.InsufficientPrivilege as error:
        raise Forbidden(
            f"the database does not allow it: {error.diag.message_primary}; run this as a role that has CREATEROLE and "
            "owns dagmaster's tables"
        ) from error
    return not roles


def _check(name: str, password: str) -> None:
    if not _NAME.fullmatch(name):
        raise Invalid(
            f"{name!r} is not a usable name: up to 63 lowercase letters, digits and underscores, not beginning with pg_"
        )
    if len(password) < MIN_PASSWORD_LENGTH:
        raise Invalid(f"the password needs at least {MIN_PASSWORD_LENGTH} characters")


def _verifier(conn: Connection, name: str, password: str) -> str:
    """The hash that the server stores, so that the password does not appear in its log."""
    return conn.pgconn.encrypt_password(password.encode(), name.encode(), b"scram-sha-256").decode()
