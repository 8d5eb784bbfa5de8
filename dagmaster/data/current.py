"""The tables that the running code uses."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

from dagmaster.errors import Conflict

if TYPE_CHECKING:
    from dagmaster.data.objects import DataContext


class TablesInUse(Protocol):
    """Opened on first use: most tasks use no tables, and do not need the libraries."""

    def opened(self) -> "DataContext": ...

    def receive(self, plan: Any) -> None:
        """Record that an incoming reference names the tables of this plan."""

    def pass_on(self, plan: Any) -> None:
        """Record that another task will read the tables of this plan."""

    async def keep_passed(self) -> None:
        """Keep passed tables before that task can start."""


_current: ContextVar[TablesInUse | None] = ContextVar("dagmaster_tables", default=None)


def find_tables() -> TablesInUse | None:
    return _current.get()


def get_data_context() -> "DataContext":
    """The open DataContext, or that of the running task. Raises Conflict if there is none."""
    tables = _current.get()
    if tables is None:
        raise Conflict("no tables are open here: write `async with DataContext():` around it, or run it in a task")
    return tables.opened()


@contextmanager
def using(tables: TablesInUse) -> Iterator[None]:
    token = _current.set(tables)
    try:
        yield
    finally:
        _current.reset(token)
