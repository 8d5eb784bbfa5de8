"""The port to whoever remembers which tables exist, for whom, and for how long."""

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
    """What is known once the rows are in."""

    table_id: int
    rows: int
    size_bytes: int
    columns: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class InlineTable:
    """A small table that has no table yet: its rows are in the entry, as an Arrow stream."""

    rows: bytes
    columns: Mapping[str, str]


class Catalog(Protocol):
    async def announce(self, table: NewTable) -> None:
        """Before the table is made: a table without an entry would never be dropped."""

    async def add_inline(self, table: NewTable, stored: StoredTable, rows: bytes) -> None:
        """An entry with its rows, which can be used at once."""

    async def find_inline(self, table_ids: Sequence[int]) -> Mapping[int, InlineTable]:
        """Those of these that have no table yet."""

    def tabulating(self, table_id: int) -> AbstractAsyncContextManager[None]:
        """While it lasts the rows of the entry are put into a table, and the entry cannot expire.

        Raises UnknownTable if it has expired before.
        """

    async def complete(self, table: StoredTable) -> None:
        """The table can be used. One that has its name in the same scope is dropped later."""

    def appending(self, table_id: int) -> AbstractAsyncContextManager[None]:
        """While it lasts nobody else appends to the table, in no process."""

    async def find(self, name: str, scope: Scope) -> int | None: ...

    async def use(self, table_ids: Sequence[int]) -> None:
        """These are kept while whoever reads them may need them. Raises UnknownTable for those that it may not read."""

    async def keep(self, table_ids: Sequence[int]) -> None:
        """Temporary tables become tables of the job."""

    async def expired(self) -> Sequence[int]:
        """Tables that are to be dropped."""

    async def expire(self, table_ids: Sequence[int]) -> Collection[int]:
        """Those of them that may have a table."""

    async def forget(self, table_ids: Sequence[int]) -> None:
        """After they were dropped."""
