"""The engines that run statements: one protocol, the choice by URL, and the threads that wait for them."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar
from urllib.parse import parse_qs, quote, unquote, urlsplit, urlunsplit

from dagmaster.errors import DagmasterError, Invalid, Misconfigured, QueryCancelled
from dagmaster.snowflakes import new_id

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

INSTALL: Final = "install it with: pip install 'dagmaster[data]'"
EXAMPLES: Final = "chdb:///var/lib/tables, service:///var/lib/tables or https://user:password@clickhouse.example:8443"

# For every query: a missing partner of a join is NULL, and a cast of NULL is NULL.
SETTINGS: Final[Mapping[str, str]] = {
    "join_use_nulls": "1",
    "cast_keep_nullable": "1",
    "output_format_arrow_string_as_string": "1",
    "output_format_arrow_low_cardinality_as_dictionary": "0",
    "session_timezone": "UTC",
}
# One block per insert, however large: blocks are atomic, and are what a token deduplicates.
INSERT_SETTINGS: Final[Mapping[str, str]] = {
    "min_insert_block_size_rows": str(1 << 40),
    "min_insert_block_size_bytes": "0",
    "max_insert_threads": "1",
    "async_insert": "0",
}
MODULES: Final = {
    "chdb": "dagmaster.data.chdb_engine",
    "service": "dagmaster.data.service_engine",
    "http": "dagmaster.data.server_engine",
    "https": "dagmaster.data.server_engine",
    "cluster": "dagmaster.data.cluster_engine",
}
FOLDERS: Final = ("chdb", "service")
CANCELLED_POLL_SECONDS: Final = 0.25
KILL_AGAIN_SECONDS: Final = 0.2


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one query, and of the number of tables per job. None is no limit."""

    memory_bytes: int | None = None
    seconds: float | None = None
    rows_read: int | None = None
    tables: int | None = None
    is_read_only: bool = False

    def settings(self) -> dict[str, str]:
        named = {
            "max_memory_usage": self.memory_bytes,
            "max_execution_time": self.seconds,
            "max_rows_to_read": self.rows_read,
            "readonly": int(self.is_read_only),
        }
        return {
            name: f"{value:g}" if isinstance(value, float) else str(value) for name, value in named.items() if value
        }


NO_LIMITS: Final = Limits()


class Ticket:
    """The right to run statements. They carry its id, by which they can be killed."""

    def __init__(self) -> None:
        self.query_id = f"dagmaster-{new_id()}"
        self.is_cancelled = False


_ticket: ContextVar[Ticket | None] = ContextVar("dagmaster_query", default=None)


def query_id() -> str:
    """The id of the next statement. Raises QueryCancelled if its caller was cancelled."""
    ticket = _ticket.get()
    if ticket is None:
        return Ticket().query_id
    if ticket.is_cancelled:
        raise QueryCancelled
    return ticket.query_id


class Engine(Protocol):
    """Calls block, from any thread. Raises QueryFailed, or EngineLost if the engine does not respond."""

    def query(self, sql: str, parameters: Mapping[str, str]) -> "pa.Table": ...

    def batches(self, sql: str, parameters: Mapping[str, str]) -> "Iterator[pa.RecordBatch]":
        """As they are computed: the rows need not fit into memory."""

    def create(self, table: str, columns: str) -> None:
        """Create the table unless it exists. Its first column is the row id."""

    def insert(self, table: str, rows: "pa.Table", token: str | None = None) -> None:
        """Rows with the same token are added once, however often they are inserted."""

    def fill(self, table: str, columns: str, sql: str, parameters: Mapping[str, str]) -> None:
        """Replace the rows of the table by those of this query."""

    def drop(self, table: str) -> None: ...

    def size_bytes(self, table: str) -> int: ...

    def kill(self, query_id: str) -> None:
        """Kill the statements with this id, if they still run."""

    def close(self) -> None: ...


def open_engine(url: str, limits: Limits = NO_LIMITS) -> Engine:
    """`chdb:///folder` is ClickHouse in this process, `service:///folder` in a shared process, `https://` a server.

    A list of hosts and `?cluster=name` is a cluster.
    """
    parts = urlsplit(url)
    kind = "cluster" if parts.scheme in ("http", "https") and "cluster" in parse_qs(parts.query) else parts.scheme
    if kind not in MODULES or parts.scheme == "cluster":
        raise Invalid(f"{location_of(url)[:80]!r} is not the URL of a data engine, such as {EXAMPLES}")
    try:
        module: Any = import_module(MODULES[kind])
    except ModuleNotFoundError as error:
        raise Misconfigured(f"tables need the module {error.name}; {INSTALL}") from error
    engine: Engine = module.open_url(url, limits)
    return engine


class EngineRunner:
    """An engine that is opened on first use, and the threads that run its statements."""

    def __init__(self, url: str, limits: Limits) -> None:
        self.url = url
        self.limits = limits
        # Set when the caller of this thread was cancelled: threads cannot be stopped, their queries can.
        self.cancelled: threading.Event | None = None
        self._engine: Engine | None = None
        self._opening = threading.Lock()

    async def release(self) -> None:
        """Release the engine, and leave the tables as they are."""
        engine, self._engine = self._engine, None
        if engine is not None:
            await self.run(engine.close)

    async def run(self, work: Callable[[], T]) -> T:
        """Run in a thread, because the engine blocks. If the task is cancelled, its queries are killed."""
        ticket = Ticket()

        def ticketed() -> T:
            _ticket.set(ticket)
            return work()

        running = asyncio.ensure_future(asyncio.to_thread(ticketed))
        try:
            while not running.done():
                await asyncio.wait([running], timeout=CANCELLED_POLL_SECONDS if self.cancelled else None)
                if self.cancelled is not None and self.cancelled.is_set():
                    raise QueryCancelled
        except (asyncio.CancelledError, QueryCancelled):
            ticket.is_cancelled = True
            await asyncio.shield(self._killed(ticket, running))
            raise
        return running.result()

    async def _killed(self, ticket: Ticket, running: "asyncio.Future[Any]") -> None:
        """Repeat until it has ended: a query that the engine does not know yet cannot be killed."""
        while not running.done():
            if self._engine is not None:
                with suppress(DagmasterError):  # Such as EngineLost.
                    await asyncio.to_thread(self._engine.kill, ticket.query_id)
            await asyncio.wait([running], timeout=KILL_AGAIN_SECONDS)
        running.exception()  # Retrieved: nothing awaits it.

    @property
    def engine(self) -> Engine:
        with self._opening:
            if self._engine is None:
                self._engine = open_engine(self.url, self.limits)
            return self._engine


def folder_url(folder: Path, scheme: str = "chdb") -> str:
    return f"{scheme}://{quote(str(folder.resolve()))}"


def folder_of(url: str) -> Path:
    parts = urlsplit(url)
    folder = unquote(parts.netloc + parts.path)
    if not folder:
        raise Invalid(f"{url!r} names no folder, such as chdb:///var/lib/tables")
    return Path(folder).resolve()


def location_of(url: str) -> str:
    """The location of the tables: the same for a folder however it is opened, and without a password."""
    parts = urlsplit(url)
    if parts.scheme in FOLDERS:
        return folder_url(folder_of(url))
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
