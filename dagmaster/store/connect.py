"""Connections: opening, session settings, and the classification of their errors."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any, TypeVar

import orjson
import psycopg
from psycopg import AsyncConnection, AsyncRawCursor
from psycopg.rows import DictRow, dict_row
from psycopg.types.json import set_json_loads
from psycopg_pool import AsyncConnectionPool, PoolClosed, PoolTimeout

from dagmaster.errors import DagmasterError, DatabaseUnavailable, TooManyConnections
from dagmaster.store.hot_connection import HotConnection

log = logging.getLogger(__name__)

Row = dict[str, Any]
Connection = AsyncConnection[DictRow]
Pool = AsyncConnectionPool[Connection]
AnyConnection = TypeVar("AnyConnection", bound=Connection)
AnyRow = TypeVar("AnyRow")

# Every statement of the hot path finds its rows by key. Statistics lag behind a young table, and a plan that scans
# all of it, once cached, would stay for minutes.
_INDEX_PLANS = (
    "-c enable_seqscan=off -c enable_hashjoin=off -c enable_mergejoin=off -c jit=off "
    "-c plan_cache_mode=force_generic_plan"
)
# An open transaction keeps every dead row from being vacuumed.
_SESSION_OPTIONS = "-c idle_in_transaction_session_timeout=60s -c client_min_messages=warning"

_SETTINGS: dict[str, Any] = {
    "autocommit": True,
    "row_factory": dict_row,
    "cursor_factory": AsyncRawCursor,
    "connect_timeout": 10,
}

# How long a command waits for a free connection; servers wait forever.
BUSY_SECONDS = 30.0
_POLL_SECONDS = 1.0
# libpq gives no SQLSTATE for a failed connection: 53300 is recognized only by its message.
_FULL = (
    "too many clients",
    "too many connections",
    "connection slots are reserved",
    "no more connections allowed",  # pgbouncer
)
# The PostgreSQL function that detects that a prepared statement would return other columns than before. The SQLSTATE,
# 0A000, covers every unsupported feature.
_REVALIDATION = "RevalidateCachedQuery"


class StalePlan(psycopg.OperationalError):
    """The schema has changed since a statement was prepared; a new connection has no prepared statements."""


def is_stale_plan(error: psycopg.Error) -> bool:
    return error.diag.source_function == _REVALIDATION


# A server that became read-only is in a failover.
READ_ONLY = psycopg.errors.ReadOnlySqlTransaction
LOST = (
    psycopg.OperationalError,
    psycopg.InterfaceError,
    READ_ONLY,
    psycopg.errors.IdleInTransactionSessionTimeout,
    OSError,
)
# Includes the errors of a pool. Readers wait and read again.
AWAY = (*LOST, psycopg.Error, PoolTimeout, PoolClosed)
_PROGRAM_LIMIT = "54"
_OUT_OF_MEMORY = "53200"
# libpq's messages for a statement that is too large to send; there is no code for it.
_UNSENDABLE = ("cannot allocate memory for output buffer", "invalid message length", "out of memory")


def is_transient(error: BaseException) -> bool:
    """Whether a retry on another connection may succeed. An exceeded limit stays exceeded."""
    if isinstance(error, psycopg.Error) and (error.sqlstate or "").startswith(_PROGRAM_LIMIT):
        return False
    return isinstance(error, LOST)


def is_too_large(error: BaseException) -> bool:
    """Whether a smaller statement might succeed."""
    if isinstance(error, MemoryError):
        return True
    if not isinstance(error, psycopg.Error):
        return False
    if error.sqlstate is not None:
        return error.sqlstate.startswith(_PROGRAM_LIMIT) or error.sqlstate == _OUT_OF_MEMORY
    return any(sign in str(error) for sign in _UNSENDABLE)


async def connect(
    dsn: str, *, application: str, durable: bool = True, lock_timeout_seconds: float | None = None
) -> Connection:
    """Autocommit, dict rows. `durable=False` is for writes that may be lost and repeated."""
    options = _options(durable=durable)
    if lock_timeout_seconds is not None:
        options.append(f"-c lock_timeout={round(lock_timeout_seconds * 1000)}")
    return await _connect(Connection, dsn, application, options, prepare_threshold=5)


async def connect_hot(dsn: str, *, application: str, durable: bool = True) -> HotConnection:
    """For loops of statements that find their rows by key, with index plans and prepared statements."""
    options = [*_options(durable=durable), _INDEX_PLANS]
    return await _connect(HotConnection, dsn, application, options, prepare_threshold=0)


def _options(*, durable: bool) -> list[str]:
    return [_SESSION_OPTIONS] if durable else [_SESSION_OPTIONS, "-c synchronous_commit=off"]


async def _connect(
    kind: type[AnyConnection], dsn: str, application: str, options: Sequence[str], *, prepare_threshold: int
) -> AnyConnection:
    try:
        connection = await kind.connect(
            dsn,
            **_SETTINGS,
            prepare_threshold=prepare_threshold,
            application_name=application,
            options=" ".join(options),
        )
    except psycopg.OperationalError as error:
        raise unreachable(error) from error
    set_json_loads(orjson.loads, connection)
    return connection


def unreachable(error: Exception) -> DatabaseUnavailable:
    """The error for a failed connection."""
    reason = str(error).strip().splitlines()[0]
    if any(sign in reason for sign in _FULL):
        return TooManyConnections(
            f"the database has no connection left: {reason}; close some, or raise the limit (max_connections, or that "
            "of the role, the database or the pooler)"
        )
    return DatabaseUnavailable(f"the database cannot be reached: {reason}")


async def open_pool(dsn: str, *, application: str, size: int, statement_timeout_seconds: float) -> Pool:
    """Connections for interactive requests, opened on demand."""
    pool: Pool = AsyncConnectionPool(
        dsn,
        min_size=1,
        max_size=size,
        max_idle=60,
        timeout=10,
        kwargs={
            **_SETTINGS,
            "application_name": application,
            "options": f"{_SESSION_OPTIONS} -c statement_timeout={round(statement_timeout_seconds * 1000)} -c jit=off",
        },
        configure=_configure,
        open=False,
    )
    await pool.open(wait=False)
    return pool


async def _configure(connection: Connection) -> None:
    set_json_loads(orjson.loads, connection)


def keep_json(connection: Connection) -> None:
    """Return JSON as the stored bytes, without decoding it."""
    set_json_loads(_as_bytes, connection)


def _as_bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


@asynccontextmanager
async def opened(dsn: str, *, application: str, busy_seconds: float | None = None) -> AsyncIterator[Connection]:
    """Waits up to `busy_seconds` (BUSY_SECONDS) for a free connection."""
    limit = BUSY_SECONDS if busy_seconds is None else busy_seconds
    connection = await _connect_when_free(dsn, application, monotonic() + limit)
    try:
        yield connection
    finally:
        await connection.close()


async def _connect_when_free(dsn: str, application: str, deadline: float) -> Connection:
    while True:
        try:
            return await connect(dsn, application=application)
        except TooManyConnections as error:
            if monotonic() + _POLL_SECONDS > deadline:
                raise
            log.warning("%s; trying again", error)
        await asyncio.sleep(_POLL_SECONDS)


def required(row: AnyRow | None, error: DagmasterError) -> AnyRow:
    """The row; raises the error if there is none."""
    if row is None:
        raise error
    return row


def encode_rows(rows: Sequence[Any]) -> str | None:
    """Rows for `json_to_recordset`: one parameter, whatever their number."""
    if not rows:
        return None
    return orjson.dumps(rows, option=orjson.OPT_NON_STR_KEYS).decode()


def encode_json(value: object) -> str:
    return orjson.dumps(value).decode()


def encode_ids(ids: Sequence[int]) -> str | None:
    """An array of bigint as text. The driver is many times slower for a list, even with one element."""
    return f"{{{','.join(map(str, ids))}}}" if ids else None


def encode_texts(texts: Sequence[str]) -> str | None:
    """An array of text as text, for the same reason."""
    if not texts:
        return None
    quoted = (text.replace("\\", "\\\\").replace('"', '\\"') for text in texts)
    return "{" + ",".join(f'"{text}"' for text in quoted) + "}"


def escape_like(text: str) -> str:
    """Escape the wildcards of LIKE."""
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


def storable(text: str) -> str:
    """Replace characters that PostgreSQL cannot store: NUL and lone surrogates."""
    return text.encode(errors="replace").decode().replace("\0", "\ufffd")
