"""Connections: how they are opened, what they have set, and what their loss looks like."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import orjson
import psycopg
from psycopg import AsyncConnection, AsyncRawCursor
from psycopg.rows import DictRow, dict_row
from psycopg.types.json import set_json_loads
from psycopg_pool import AsyncConnectionPool, PoolClosed, PoolTimeout

from dagmaster.errors import DatabaseUnavailable

Connection = AsyncConnection[DictRow]
Pool = AsyncConnectionPool[Connection]

# Every statement of the hot path finds its rows by key. While a table is young its statistics are not, and a plan
# that reads all of it, once chosen, would stay for minutes.
_BY_KEY = " ".join(
    f"-c {setting}"
    for setting in (
        "enable_seqscan=off",
        "enable_hashjoin=off",
        "enable_mergejoin=off",
        "plan_cache_mode=force_generic_plan",
        "jit=off",
    )
)
# A transaction that is left open keeps every dead row alive.
_SAFE = "-c idle_in_transaction_session_timeout=60s -c client_min_messages=warning"

# A server that is read-only is about to become something else: a fail-over looks like that.
READ_ONLY = psycopg.errors.ReadOnlySqlTransaction
LOST = (
    psycopg.OperationalError,
    psycopg.InterfaceError,
    READ_ONLY,
    psycopg.errors.IdleInTransactionSessionTimeout,
    psycopg.errors.FeatureNotSupported,  # A plan that the schema has outgrown; a new connection has none.
    OSError,
)
# What a pool raises besides: whoever only looks waits and looks again.
AWAY = (*LOST, psycopg.Error, PoolTimeout, PoolClosed)
_PROGRAM_LIMIT = "54"
_OUT_OF_MEMORY = "53200"
# What libpq says when a statement is larger than it can send. It has no code for it.
_UNSENDABLE = ("cannot allocate memory for output buffer", "invalid message length", "out of memory")


def may_pass(error: BaseException) -> bool:
    """Whether the same may succeed later, on another connection. A limit of PostgreSQL's stays exceeded."""
    if isinstance(error, psycopg.Error) and (error.sqlstate or "").startswith(_PROGRAM_LIMIT):
        return False
    return isinstance(error, LOST)


def is_too_large(error: BaseException) -> bool:
    """Whether less of the same might succeed."""
    if isinstance(error, MemoryError):
        return True
    if not isinstance(error, psycopg.Error):
        return False
    if error.sqlstate is not None:
        return error.sqlstate.startswith(_PROGRAM_LIMIT) or error.sqlstate == _OUT_OF_MEMORY
    return any(sign in str(error) for sign in _UNSENDABLE)


async def connect(
    dsn: str,
    *,
    application: str,
    hot: bool = False,
    durable: bool = True,
    lock_timeout_seconds: float | None = None,
) -> Connection:
    """Autocommit, dict rows. `hot` is for loops of keyed statements; not `durable` for what may be repeated."""
    options = [_SAFE]
    if hot:
        options.append(_BY_KEY)
    if not durable:
        options.append("-c synchronous_commit=off")
    if lock_timeout_seconds is not None:
        options.append(f"-c lock_timeout={round(lock_timeout_seconds * 1000)}")
    try:
        connection = await AsyncConnection.connect(
            dsn,
            autocommit=True,
            prepare_threshold=0 if hot else 5,
            row_factory=dict_row,
            cursor_factory=AsyncRawCursor,
            application_name=application,
            options=" ".join(options),
            connect_timeout=10,
        )
    except psycopg.OperationalError as error:
        raise DatabaseUnavailable(f"the database cannot be reached: {str(error).strip().splitlines()[0]}") from error
    set_json_loads(orjson.loads, connection)
    return connection


async def open_pool(dsn: str, *, application: str, size: int, statement_timeout_seconds: float) -> Pool:
    """Connections for questions that people ask; the pool opens them when they are needed."""
    pool: Pool = AsyncConnectionPool(
        dsn,
        min_size=1,
        max_size=size,
        max_idle=60,
        timeout=10,
        kwargs={
            "autocommit": True,
            "row_factory": dict_row,
            "cursor_factory": AsyncRawCursor,
            "application_name": application,
            "options": f"{_SAFE} -c statement_timeout={round(statement_timeout_seconds * 1000)} -c jit=off",
            "connect_timeout": 10,
        },
        configure=_configure,
        open=False,
    )
    await pool.open(wait=False)
    return pool


async def _configure(connection: Connection) -> None:
    set_json_loads(orjson.loads, connection)


def keep_json(connection: Connection) -> None:
    """JSON comes as the bytes that were stored: it is carried, not looked into."""
    set_json_loads(_as_bytes, connection)


def _as_bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


@asynccontextmanager
async def opened(dsn: str, *, application: str) -> AsyncIterator[Connection]:
    connection = await connect(dsn, application=application)
    try:
        yield connection
    finally:
        await connection.close()


def encode_rows(rows: Sequence[Any]) -> str | None:
    """Rows for `json_to_recordset`: one parameter, one pass, whatever their number."""
    if not rows:
        return None
    return orjson.dumps(rows, option=orjson.OPT_NON_STR_KEYS).decode()


def storable(text: str) -> str:
    """An exception may say anything; PostgreSQL takes neither NUL nor half a character."""
    return text.encode(errors="replace").decode().replace("\0", "\ufffd")
