"""The port to the catalogue, which knows which tables exist, for whom, and for how long."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from dagmaster.model.data_object import Scope as Scope


@dataclass(frozen=True, slots=True)
class NewTable:
    """A table before it exists, with its origin."""

    table_id: int
    scope: Scope
    name: str | None = None
    plan: Mapping[str, Any] | None = None
    sql: str | None = None
    inputs: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class StoredTable:
    """The facts known once the rows are stored."""

    table_id: int
    rows: int
    size_bytes: int
    columns: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class InlineTable:
    """A small table without a real table: its rows are in the entry, as an Arrow stream."""

    rows: bytes
    columns: Mapping[str, str]


class Catalog(Protocol):
    async def announce(self, table: NewTable) -> None:
        """Add the entry before the table is created: a table without an entry would never be dropped."""

    async def add_inline(self, table: NewTable, stored: StoredTable, rows: bytes) -> None:
        """Add an entry with its rows, usable at once."""

    async def find_inline(self, table_ids: Sequence[int]) -> Mapping[int, InlineTable]:
        """The tables among these whose rows are in their entries."""

    def tabulating(self, table_id: int) -> AbstractAsyncContextManager[None]:
        """Move the rows of the entry into a real table; the entry cannot expire meanwhile.

        Raises UnknownTable if it has already expired.
        """

    async def complete(self, table: StoredTable) -> None:
        """Mark the table as usable. An older table of the same name and scope is dropped later."""

    def appending(self, table_id: int) -> AbstractAsyncContextManager[None]:
        """Exclude concurrent appends to the table, in all processes."""

    async def find(self, name: str, scope: Scope) -> int | None: ...

    async def use(self, table_ids: Sequence[int]) -> None:
        """Keep these tables while the reader may need them. Raises UnknownTable for tables that it may not read."""

    async def keep(self, table_ids: Sequence[int]) -> None:
        """Turn temporary tables into tables of the job."""

    async def expired(self) -> Sequence[int]:
        """The tables to drop."""

    async def expire(self, table_ids: Sequence[int]) -> Collection[int]:
        """Expire the tables; returns those that may have a real table."""

    async def forget(self, table_ids: Sequence[int]) -> None:
        """Remove the entries after the tables were dropped."""
