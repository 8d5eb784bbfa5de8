"""The named SQL statements of `sql/*.sql`, and the one way to run them."""

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
from psycopg import AsyncConnection, AsyncCursor
from psycopg.pq import TransactionStatus
from psycopg.rows import DictRow

# "cached plan must not change result type": the schema was changed since the statement was prepared.
CHANGED_SCHEMA = psycopg.errors.FeatureNotSupported

_NAME = re.compile(r"^-- (\w+) --$", re.MULTILINE)
_COMMENT = re.compile(r"--.*$", re.MULTILINE)
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)\b")


class Statement(NamedTuple):
    """With PostgreSQL's own placeholders: the driver need not look into a long text each time it is run."""

    text: bytes
    names: tuple[str, ...]


def _load(folder: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for path in sorted(folder.glob("*.sql")):
        _, *parts = _NAME.split(path.read_text(encoding="utf-8"))
        for name, body in zip(parts[::2], parts[1::2], strict=True):
            assert name not in found, f"two statements are named {name}"
            found[name] = _COMMENT.sub("", body).strip().removesuffix(";")
    return found


def _number(code: str) -> Statement:
    names: dict[str, int] = {}
    text = _PARAMETER.sub(lambda match: f"${names.setdefault(match[1], len(names) + 1)}", code)
    return Statement(text.encode(), tuple(names))


_CODE = _load(Path(__file__).parent / "sql")
SQL = {name: _number(code) for name, code in _CODE.items()}


@cache
def compose(parts: tuple[str, ...], checks: tuple[str, ...]) -> Statement:
    """One statement of several: the parts as CTEs of their names, the checks as its result."""
    ctes = ",\n".join(f"{name} AS (\n{_CODE[name]}\n)" for name in parts)
    return _number(f"WITH {ctes}\nSELECT {', '.join(f'({_CODE[name]})' for name in checks)}")


async def run(
    conn: AsyncConnection[DictRow], name: str, values: Mapping[str, Any] | None = None
) -> AsyncCursor[DictRow]:
    """Run the statement of this name on a connection of `connect`."""
    return await run_statement(conn, SQL[name], values)


async def fetch(conn: AsyncConnection[DictRow], name: str, values: Mapping[str, Any] | None = None) -> list[DictRow]:
    """All rows of the statement of this name."""
    return await (await run(conn, name, values)).fetchall()


async def run_statement(
    conn: AsyncConnection[DictRow], statement: Statement, values: Mapping[str, Any] | None = None
) -> AsyncCursor[DictRow]:
    given = [values[key] for key in statement.names] if values else None
    try:
        return await conn.execute(statement.text, given)
    except CHANGED_SCHEMA:
        if conn.info.transaction_status is not TransactionStatus.IDLE:
            raise  # What is rolled back is prepared again by whoever repeats it.
        await conn.execute("DEALLOCATE ALL")
        return await conn.execute(statement.text, given)
