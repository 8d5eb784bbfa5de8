"""The named SQL statements of `sql/*.sql`, and the functions that run them."""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import psycopg
from psycopg import AsyncConnection, AsyncCursor
from psycopg.pq import TransactionStatus
from psycopg.rows import DictRow

from dagmaster.store.connect import StalePlan, is_stale_plan
from dagmaster.store.hot_connection import HotConnection

Answer = TypeVar("Answer")
TypedRow = TypeVar("TypedRow")

_NAME = re.compile(r"^-- (\w+|{\w+}) --$", re.MULTILINE)
_FRAGMENT = re.compile(r"{[a-z]\w*}")
_COMMENT = re.compile(r"--.*$", re.MULTILINE)
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)\b")


class Statement(NamedTuple):
    """With PostgreSQL's own placeholders, so that the driver need not parse a long text for each run."""

    text: bytes
    names: tuple[str, ...]

    def values(self, named: Mapping[str, Any] | None) -> list[Any]:
        """In the order of the placeholders."""
        return [named[name] for name in self.names] if named is not None else []


def _load(folder: Path) -> dict[str, str]:
    """The code of each statement. SQL that several of them share is a fragment, named and used as `{name}`."""
    codes: dict[str, str] = {}
    for path in sorted(folder.glob("*.sql")):
        _, *parts = _NAME.split(path.read_text(encoding="utf-8"))
        for name, body in zip(parts[::2], parts[1::2], strict=True):
            assert name not in codes, f"two statements are named {name}"
            codes[name] = _COMMENT.sub("", body).strip().removesuffix(";")
    return {name: _filled(body, codes) for name, body in codes.items() if not _FRAGMENT.fullmatch(name)}


def _filled(code: str, fragments: Mapping[str, str]) -> str:
    """A fragment may use others."""
    return _FRAGMENT.sub(lambda match: _filled(fragments[match[0]], fragments), code)


def _number(code: str) -> Statement:
    names: dict[str, int] = {}
    text = _PARAMETER.sub(lambda match: f"${names.setdefault(match[1], len(names) + 1)}", code)
    return Statement(text.encode(), tuple(names))


_CODE = _load(Path(__file__).parent / "sql")
SQL = {name: _number(code) for name, code in _CODE.items()}


def compose(parts: Mapping[str, str], checks: Sequence[str]) -> Statement:
    """Compose one statement: the parts as CTEs under their names, the checks as its result."""
    ctes = ",\n".join(f"{name} AS (\n{_CODE[statement]}\n)" for name, statement in parts.items())
    return _number(f"WITH {ctes}\nSELECT {', '.join(f'({_CODE[name]})' for name in checks)}")


async def run(
    conn: AsyncConnection[DictRow], name: str, values: Mapping[str, Any] | None = None
) -> AsyncCursor[DictRow]:
    """Run the statement on a connection of `connect`."""
    return await run_statement(conn, SQL[name], values)


async def fetch(conn: AsyncConnection[DictRow], name: str, values: Mapping[str, Any] | None = None) -> list[DictRow]:
    """All rows of the statement."""
    return await fetch_statement(conn, SQL[name], values)


async def fetch_as(
    conn: AsyncConnection[DictRow], row_type: type[TypedRow], name: str, values: Mapping[str, Any] | None = None
) -> list[TypedRow]:
    """All rows as a TypedDict with their columns; a test compares the two."""
    return cast(list[TypedRow], await fetch(conn, name, values))


async def fetch_one(
    conn: AsyncConnection[DictRow], name: str, values: Mapping[str, Any] | None = None
) -> DictRow | None:
    """The first row of the statement, or None."""
    rows = await fetch(conn, name, values)
    return rows[0] if rows else None


async def fetch_one_as(
    conn: AsyncConnection[DictRow], row_type: type[TypedRow], name: str, values: Mapping[str, Any] | None = None
) -> TypedRow | None:
    return cast(TypedRow | None, await fetch_one(conn, name, values))


async def fetch_statement(
    conn: AsyncConnection[DictRow], statement: Statement, values: Mapping[str, Any] | None = None
) -> list[DictRow]:
    """All rows; a hot connection uses its fast path."""
    if not isinstance(conn, HotConnection):
        return await (await run_statement(conn, statement, values)).fetchall()
    parameters = statement.values(values)
    return await _with_valid_plans(conn, lambda: conn.fetch_prepared(statement.text, parameters))


async def fetch_atomically(
    conn: HotConnection, statements: Sequence[tuple[str, Mapping[str, Any]]]
) -> list[list[DictRow]]:
    """The rows of each statement, in one transaction and one round trip."""
    prepared = [(SQL[name].text, SQL[name].values(values)) for name, values in statements]
    return await _with_valid_plans(conn, lambda: conn.fetch_atomically(prepared))


async def run_statement(
    conn: AsyncConnection[DictRow], statement: Statement, values: Mapping[str, Any] | None = None
) -> AsyncCursor[DictRow]:
    parameters = statement.values(values) if values else None
    return await _with_valid_plans(conn, lambda: conn.execute(statement.text, parameters))


async def _with_valid_plans(conn: AsyncConnection[DictRow], attempt: Callable[[], Awaitable[Answer]]) -> Answer:
    """Retry once, prepared again, after a change of the schema. Other unsupported features stay unsupported."""
    try:
        return await attempt()
    except psycopg.errors.FeatureNotSupported as error:
        if not is_stale_plan(error):
            raise
        if isinstance(conn, HotConnection):
            conn.forget_prepared()
        # In a transaction, the retry of the transaction prepares again.
        if conn.info.transaction_status is not TransactionStatus.IDLE:
            raise StalePlan(str(error)) from error
    await conn.execute("DEALLOCATE ALL")
    return await attempt()
