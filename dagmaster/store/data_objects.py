"""The catalogue entries of the data plane's tables."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from psycopg.types.json import Jsonb

from dagmaster.errors import TooLarge, UnknownTable
from dagmaster.model.data_object import Scope
from dagmaster.model.states import JOB_TERMINAL, NODE_TERMINAL
from dagmaster.store.connect import Connection, Row, required
from dagmaster.store.statements import fetch, fetch_one, run

EXPIRED_AT_ONCE: Final = 1000
# A worker holds a task for a moment before the task's row says so.
GRACE_SECONDS: Final = 30.0
LINEAGE_TABLES: Final = 1000
NAMES_SHOWN: Final = 20
SECONDS_PER_DAY: Final = 86_400
# A program renews its lease every minute. It may be suspended for a while, like a notebook on a laptop.
BEAT_SECONDS: Final = 60.0
PROGRAM_LEASE_SECONDS: Final = 15 * 60.0
TERMINAL: Final = {
    "terminal": [status.value for status in JOB_TERMINAL],
    "terminal_nodes": [status.value for status in NODE_TERMINAL],
}


@dataclass(frozen=True, slots=True)
class NewObject:
    """A new entry, with the task or the program that creates the table."""

    object_id: int
    scope: Scope
    location: str
    name: str | None = None
    job_id: int | None = None
    task_id: str | None = None
    program_id: int | None = None
    inputs: Sequence[int] = ()
    max_tables: int | None = None

    def values(self) -> Row:
        named = {name: getattr(self, name) for name in self.__slots__}
        return {**named, "scope": self.scope.value, "inputs": list(self.inputs)}


async def announce(
    conn: Connection, new: NewObject, *, plan: Mapping[str, Any] | None = None, sql: str | None = None
) -> None:
    """Add the entry before its table is created. Raises TooLarge if the job already has `max_tables`."""
    values = {**new.values(), "plan": Jsonb(plan) if plan is not None else None, "sql": sql}
    if (await run(conn, "announce_data_object", values)).rowcount == 0:
        raise _too_many(new)


async def add_inline(
    conn: Connection, new: NewObject, *, row_count: int, columns: Mapping[str, str], inline_rows: bytes
) -> None:
    """Add a small table with its rows, ready at once. Raises TooLarge if the job already has `max_tables`."""
    values = {**new.values(), **_stored_values(row_count, len(inline_rows), columns), "inline_rows": inline_rows}
    if not await fetch(conn, "add_inline_data_object", values):
        raise _too_many(new)


async def find_inline(conn: Connection, object_ids: Sequence[int]) -> list[Row]:
    """The tables among these whose rows are in their entries."""
    return await fetch(conn, "find_inline_data_objects", {"object_ids": list(object_ids)})


@asynccontextmanager
async def tabulating(conn: Connection, object_id: int) -> AsyncIterator[None]:
    """Create a table from the rows in the entry, which cannot expire meanwhile.

    `has_table` is committed first, so that a table is dropped even after a crash.
    """
    await run(conn, "expect_table", {"object_id": object_id})
    async with conn.transaction():
        entry = await fetch_one(conn, "lock_entry", {"object_id": object_id})
        required(entry, UnknownTable(f"there is no table {object_id}; it may have been dropped"))
        yield
        await run(conn, "clear_inline_rows", {"object_id": object_id})


def _too_many(new: NewObject) -> TooLarge:
    return TooLarge(
        f"job {new.job_id} has {new.max_tables} tables, the limit of DAGMASTER_DATA_MAX_TABLES; "
        "pass Views on instead of storing each step"
    )


async def use(conn: Connection, object_ids: Sequence[int], job_id: int, node_id: str) -> None:
    """Register the node as a reader of these tables, which keeps them until it ends.

    Raises UnknownTable for a dropped table, or one that is neither global nor of this job's family.
    """
    values = {"object_ids": list(object_ids), "job_id": job_id, "node_id": node_id}
    rows = await fetch(conn, "use_data_objects", values)
    if refused := sorted(set(object_ids) - {row["object_id"] for row in rows}):
        raise UnknownTable(
            f"job {job_id} has no table {refused[0]}: a reference may name tables of its own job and global ones, "
            "and a table may have been dropped"
        )


async def complete(
    conn: Connection, object_id: int, *, row_count: int, size_bytes: int, columns: Mapping[str, str]
) -> None:
    """Mark the table as usable."""
    await run(conn, "complete_data_object", {"object_id": object_id, **_stored_values(row_count, size_bytes, columns)})


def _stored_values(row_count: int, size_bytes: int, columns: Mapping[str, str]) -> Row:
    # A list, because jsonb does not keep the order of keys.
    column_list = [{"name": name, "type": kind} for name, kind in columns.items()]
    return {"row_count": row_count, "size_bytes": size_bytes, "columns": Jsonb(column_list)}


async def find_object(conn: Connection, name: str, scope: Scope, *, location: str, job_id: int | None) -> int | None:
    values = {"name": name, "scope": scope.value, "location": location, "job_id": job_id}
    row = await fetch_one(conn, "find_data_object", values)
    return row["object_id"] if row else None


async def lock_for_append(conn: Connection, object_id: int) -> None:
    """Lock until the end of the transaction."""
    await run(conn, "lock_data_object", {"object_id": object_id})


async def keep(conn: Connection, object_ids: Sequence[int]) -> None:
    """Raises UnknownTable if a table expired meanwhile: its reference would be dangling."""
    kept = await run(conn, "keep_data_objects", {"object_ids": list(object_ids)})
    if kept.rowcount < len(object_ids):
        raise UnknownTable("tables of this task were dropped while it ran, because the task counted as lost")


async def expire(conn: Connection, object_ids: Sequence[int]) -> set[int]:
    """Mark the tables as expired; returns those that may have a table in the engine."""
    rows = await fetch(conn, "expire_data_objects", {"object_ids": list(object_ids)})
    return {row["object_id"] for row in rows if row["has_table"]}


async def expire_ended(
    conn: Connection,
    *,
    retention_days: float,
    grace_seconds: float = GRACE_SECONDS,
    lease_seconds: float = PROGRAM_LEASE_SECONDS,
) -> int:
    """Mark unneeded tables as expired, and return their number. The owner of the engine drops them."""
    values = {
        **TERMINAL,
        "retention_seconds": retention_days * SECONDS_PER_DAY,
        "grace_seconds": grace_seconds,
        "lease_seconds": lease_seconds,
    }
    marked = (await run(conn, "expire_ended_data_objects", values)).rowcount
    await run(conn, "forget_inline_data_objects", TERMINAL)
    await run(conn, "forget_data_programs", {"lease_seconds": lease_seconds})
    return marked


async def beat_program(conn: Connection, program_id: int) -> None:
    """Renew the lease of a program, which keeps its temporary and unfinished tables."""
    await run(conn, "beat_data_program", {"program_id": program_id})


async def end_program(conn: Connection, program_id: int) -> None:
    await run(conn, "end_data_program", {"program_id": program_id})


async def expired(conn: Connection, location: str) -> list[int]:
    values = {"location": location, "limit": EXPIRED_AT_ONCE, **TERMINAL}
    rows = await fetch(conn, "expired_data_objects", values)
    return [row["object_id"] for row in rows]


async def forget(conn: Connection, object_ids: Sequence[int]) -> None:
    await run(conn, "forget_data_objects", {"object_ids": list(object_ids)})


async def list_objects(
    conn: Connection,
    *,
    scope: Scope | None = None,
    job_id: int | None = None,
    text: str | None = None,
    limit: int = 100,
    offset: int = 0,
) -> list[Row]:
    """`text` is an id or a part of a name."""
    values = {
        "scope": scope.value if scope else None,
        "job_id": job_id,
        "text": text,
        "object_id": int(text) if text and _is_id(text) else None,
        "limit": limit,
        "offset": offset,
    }
    return await fetch(conn, "list_data_objects", values)


async def find_queryable(conn: Connection, names: Sequence[str], location: str) -> dict[str, Row]:
    """Resolve the names of a query: an id, a global name without a dot, or `job_id.name`."""
    of_jobs = [(int(job_id), name) for job_id, dot, name in (name.partition(".") for name in names) if _is_id(job_id)]
    values = {
        "location": location,
        "object_ids": [int(name) for name in names if _is_id(name)],
        "names": [name for name in names if "." not in name],
        "job_ids": [job_id for job_id, _ in of_jobs],
        "job_names": [name for _, name in of_jobs],
    }
    rows = await fetch(conn, "find_queryable_data_objects", values)
    return {name: row for row in rows for name in (str(row["object_id"]), query_name(row)) if name in names}


async def list_queryable(conn: Connection, location: str | None = None) -> list[str]:
    """Names of some tables of one engine or all, for authors of queries."""
    rows = await fetch(conn, "list_queryable_data_objects", {"location": location, "limit": NAMES_SHOWN})
    return [query_name(row) for row in rows]


def query_name(row: Row) -> str:
    """A global name with a dot would read as `database.table`, so such a table is addressed by its id."""
    if row["name"] is None or (row["scope"] == Scope.GLOBAL and "." in row["name"]):
        return str(row["object_id"])
    return row["name"] if row["scope"] == Scope.GLOBAL else f"{row['job_id']}.{row['name']}"


async def get_object(conn: Connection, name_or_id: str) -> Row:
    """By its id, or by the name of a global table. Raises UnknownTable."""
    object_id = int(name_or_id) if _is_id(name_or_id) else None
    unknown = f"no table has the id or the global name {name_or_id[:80]!r}; `dagmaster data list` shows the tables"
    values = {"object_id": object_id, "name": name_or_id}
    return required(await fetch_one(conn, "get_data_object", values), UnknownTable(unknown))


async def lineage(conn: Connection, object_id: int, *, limit: int = LINEAGE_TABLES) -> list[Row]:
    """The table, then the tables it was computed from, newest first; a dropped table has no state."""
    return await fetch(conn, "data_lineage", {"object_id": object_id, "limit": limit})


def _is_id(text: str) -> bool:
    return text.isdecimal() and len(text) < 19
