"""Tables of Python tasks."""

from typing import Annotated, Any

from pydantic import Field

from dagmaster.model.data_object import DataObjectState, Scope
from dagmaster.schemas.common import Body, Id, Json, Reply, Time


class Column(Reply):
    """A column with its ClickHouse type."""

    name: str
    type: str


class ColumnOrigin(Reply):
    """A source column."""

    object_id: Id
    column: str


class TableOrigin(Reply):
    """A table and its sources. Of a dropped table, only `object_id` is known.

    `column_sources` has the source columns of each column; it is empty for a table that was not computed by a plan.
    """

    object_id: Id
    name: str | None = None
    scope: Scope | None = None
    state: DataObjectState | None = None
    job_id: Id | None = None
    workflow_id: str | None = None
    task_id: str | None = None
    row_count: int | None = None
    columns: list[Column] | None = None
    plan: Json | None = None
    sql: str | None = None
    inputs: list[Id]
    column_sources: dict[str, list[ColumnOrigin]]
    created_at: Time | None = None


class Lineage(Reply):
    """The table, then all its sources. `is_truncated` is true if some were left out."""

    tables: list[TableOrigin]
    is_truncated: bool


class TableQuery(Body):
    """One SELECT statement."""

    sql: Annotated[str, Field(min_length=1, max_length=65_536)]
    max_rows: Annotated[int, Field(ge=1, le=10_000)] = 1000


class TableRows(Reply):
    """The rows of a query. `truncated_by` is the limit that left some out: `rows` or `bytes`."""

    columns: list[str]
    rows: list[dict[str, Any]]
    truncated_by: str | None
