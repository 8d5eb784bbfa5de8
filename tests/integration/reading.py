"""Reader roles for the gateway on the test's server."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import quote, urlencode

import psycopg
from psycopg.conninfo import conninfo_to_dict

from dagmaster.store.connect import opened
from dagmaster.store.gateway_role import create_reader

PASSWORD = "correct horse battery staple"
numbers = itertools.count(1)


def new_role() -> str:
    """A new role; roles belong to the server, not to the database of a test."""
    return f"gateway_reader_{next(numbers)}"


def as_role(dsn: str, role: str) -> str:
    """The same database as a URL for this role."""
    parts = conninfo_to_dict(dsn)
    query: dict[str, str] = {name: str(value) for name, value in parts.items() if name in ("host", "port")}
    return f"postgresql://{role}:{quote(PASSWORD)}@/{parts['dbname']}?{urlencode(query)}"


def drop_role(dsn: str, role: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        if conn.execute("SELECT FROM pg_roles WHERE rolname = %s", [role]).fetchone():
            conn.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


@contextmanager
def dropped_after(dsn: str, role: str) -> Iterator[str]:
    try:
        yield role
    finally:
        drop_role(dsn, role)


async def make_reader(dsn: str, role: str) -> str:
    """Return the URL of the reader."""
    async with opened(dsn, application="test") as conn:
        await create_reader(conn, role, PASSWORD)
    return as_role(dsn, role)
