"""Objects and Views: tables as values. They are plans; a terminal call runs one query."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal, Self

import pyarrow as pa
from pydantic import GetCoreSchemaHandler, ValidationError
from pydantic_core import core_schema

from dagmaster.data import plans
from dagmaster.data.arrow import VALUE, table_from_value
from dagmaster.data.catalog import Scope
from dagmaster.data.current import find_tables, get_data_context, using
from dagmaster.data.expressions import Call, Expression, OnlyColumn, Operators, as_expression, listed, sort_keys
from dagmaster.data.files import format_of, write_file
from dagmaster.data.inline import range_of
from dagmaster.data.references import (
    Chunks,
    ObjectRef,
    Referable,
    Reference,
    TaggedReference,
    ViewRef,
    plan_of,
    reference_to,
)
from dagmaster.data.sql import compile_rows
from dagmaster.data.table_store import TableStore
from dagmaster.errors import Conflict, Invalid, TooLarge, UnknownTable

MAX_PYTHON_ROWS = 1_000_000
CHUNK_ROWS = 10_000


class View(Operators, Referable):
    """A table that is computed on demand. Each method returns another View."""

    def __init__(self, plan: Any, context: "DataContext | None" = None) -> None:
        self.plan = plan
        self._context = context

    @property
    def context(self) -> "DataContext":
        return self._context or get_data_context()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {reference_to(self.plan).model_dump()}>"

    # Transformations.

    def where(self, condition: Expression) -> "View":
        """The rows for which the condition is true, not false or NULL."""
        if not isinstance(condition, Expression):
            raise Invalid('a condition is an expression such as col("x") > 1, never text')
        return self._then(plans.Filter(source=self.plan, condition=condition.node))

    def select(self, *columns: str | Expression, **named: Any) -> "View":
        """These columns alone, by name or computed."""
        return self._then(plans.Select(source=self.plan, columns=plans.named_columns(columns, named)))

    def with_columns(self, *columns: Expression, **named: Any) -> "View":
        """All columns, and these; one of the same name is replaced."""
        return self._then(plans.WithColumns(source=self.plan, columns=plans.named_columns(columns, named)))

    def rename(self, names: Mapping[str, str]) -> "View":
        return self._then(plans.Rename(source=self.plan, names=dict(names)))

    def order_by(self, *keys: Any) -> "View":
        """By these columns, expressions, or `col("x").desc()`; NULL comes last. Equal rows keep their order."""
        if not keys:
            raise Invalid("order_by() needs a column")
        return self._then(plans.Sort(source=self.plan, keys=sort_keys(keys)))

    def limit(self, rows: int, offset: int = 0) -> "View":
        _check_natural(rows=rows, offset=offset)
        return self._then(plans.Slice(source=self.plan, offset=offset, limit=rows))

    def offset(self, rows: int) -> "View":
        _check_natural(rows=rows)
        return self._then(plans.Slice(source=self.plan, offset=rows))

    def distinct(self, *columns: str) -> "View":
        """The first row of each combination of these columns, or of all columns."""
        return self._then(plans.Distinct(source=self.plan, columns=columns))

    def explode(self, column: str) -> "View":
        """One row per element of the column's arrays; rows with an empty array are dropped."""
        return self._then(plans.Explode(source=self.plan, column=column))

    def join(
        self,
        other: "View",
        on: str | Sequence[str] = (),
        how: plans.JoinKind = "inner",
        *,
        left_on: str | Sequence[str] = (),
        right_on: str | Sequence[str] = (),
        suffix: str = "_right",
    ) -> "View":
        """Join rows with equal keys. `asof` treats the last key as an order: the nearest row that is not later."""
        left, right = tuple(listed(left_on or on)), tuple(listed(right_on or on))
        try:
            step = plans.Join(left=self.plan, right=other.plan, kind=how, left_on=left, right_on=right, suffix=suffix)
        except ValidationError as error:
            reason = error.errors()[0]["msg"].removeprefix("Value error, ")
            raise Invalid(f"this is not a join: {reason}") from error
        return self._then(step)

    def union(self, *others: "View") -> "View":
        """The rows of this table, then those of the others."""
        return self._then(plans.Union(sources=(self.plan, *(other.plan for other in others))))

    def group_by(self, *keys: str | Expression, **named: Any) -> "Groups":
        return Groups(self, plans.named_columns(keys, named))

    def agg(self, *columns: Expression, **named: Any) -> "View":
        """One row of aggregates over all rows."""
        return Groups(self, ()).agg(*columns, **named)

    # Metadata.

    def schema(self) -> dict[str, str]:
        """The columns and their ClickHouse types."""
        context = self.context
        if isinstance(self.plan, plans.Scan):
            return context.table_types(self.plan.table_id)
        context.wait_for(context.admit(self.plan))
        return context.types_of(context.compiled(self.plan))

    def sql(self) -> str:
        """The SQL statement of this View."""
        return self.context.compiled(self.plan).sql

    async def explain(self) -> str:
        """ClickHouse's query plan."""
        answer = await self.context.query(self.plan, compile_rows, "EXPLAIN indexes = 1 ")
        return "\n".join(answer["explain"].to_pylist())

    # Terminal calls.

    async def collect(self) -> pa.Table:
        """All rows as an Arrow table."""
        return await self.context.read(self.plan)

    async def batches(self) -> AsyncIterator[pa.RecordBatch]:
        """All rows in Arrow batches, as they are computed."""
        context = self.context
        if (rows := await context.inline_rows(self.plan)) is not None:
            for batch in rows.to_batches():
                yield batch
            return
        await context.admit(self.plan)
        query = await context.run(lambda: context.compiled(self.plan))
        stream = context.engine.batches(query.sql, query.parameters)
        while (batch := await context.run(lambda: next(stream, None))) is not None:
            yield batch

    async def data(self, *, max_rows: int = MAX_PYTHON_ROWS) -> Any:
        """All rows as Python values: a list for the single column `value`, else a dict of lists.

        Raises TooLarge for more than `max_rows`; rows are never dropped silently.
        """
        columns: dict[str, list[Any]] = (await self._bounded(max_rows)).to_pydict()
        return columns[VALUE] if list(columns) == [VALUE] else columns

    async def records(self, *, max_rows: int = MAX_PYTHON_ROWS) -> list[dict[str, Any]]:
        """All rows as dicts, with the same limit."""
        rows: list[dict[str, Any]] = (await self._bounded(max_rows)).to_pylist()
        return rows

    async def scalar(self) -> Any:
        """The value of a table with one row and one column."""
        table = await self.limit(2).collect()
        if table.num_columns != 1 or table.num_rows != 1:
            rows = "more than 1 row" if table.num_rows > 1 else f"{table.num_rows} rows"
            raise Invalid(f"scalar() needs one row and one column, not {rows} and {table.num_columns} columns")
        return table.column(0)[0].as_py()

    async def count(self) -> int:
        """The number of rows."""
        return await self.context.count(self.plan)

    async def materialize(self, *, name: str | None = None, scope: Scope | str | None = None) -> "Object":
        """Run the query once and store the rows as an Object."""
        return Object(await self.context.store_plan(self.plan, name=name, scope=scope), self._context)

    async def export(self, path: str | Path, format: Literal["parquet", "csv", "arrow"] | None = None) -> Path:
        """Write all rows to a file, by default in the format of its extension. It appears when it is complete."""
        return await write_file(self.batches(), Path(path), format, await self.limit(0).collect())

    async def chunks(self, rows: int | None = None, *, count: int | None = None) -> "Chunks":
        """Views of `rows` rows each, or `count` Views of about equal size, in order.

        A View that is not a range of an Object's rows is stored first.
        """
        if rows is not None and count is not None:
            raise Invalid("chunks() takes the rows of a chunk or the count of chunks, not both")
        if any(number is not None and number < 1 for number in (rows, count)):
            raise Invalid("a chunk has 1 row or more, and there is 1 chunk or more")
        ranged = self if plans.is_range(self.plan) else await self.materialize()
        bounds = plans.chunk_bounds(await ranged.count(), rows or CHUNK_ROWS, count)
        return Chunks(ranged.limit(end - start, start) for start, end in bounds)

    async def _bounded(self, max_rows: int) -> pa.Table:
        table = await self.limit(max_rows + 1).collect()
        if table.num_rows > max_rows:
            raise TooLarge(
                f"the table has more than {max_rows:,} rows: read it in batches(), collect() it as Arrow, "
                "limit() it, or say how many you want with max_rows="
            )
        return table

    def _then(self, plan: Any) -> "View":
        return View(plan, self._context)

    def _apply(self, function: str, *arguments: Any) -> "View":
        nodes = tuple(OnlyColumn() if argument is self else as_expression(argument).node for argument in arguments)
        named = plans.Named(name=VALUE, value=Call(function=function, arguments=nodes))
        return self._then(plans.Select(source=self.plan, columns=(named,)))

    def reference(self) -> Reference:
        """What passes it on: with its rows if it is a range of a small table that no catalog knows."""
        ranged = range_of(self.plan)
        if self._context is None or ranged is None or (rows := self._context.values_of(ranged[0])) is None:
            return reference_to(self.plan)
        for step in ranged[1]:
            rows = rows.part(step.offset, step.limit)
        return (ViewRef if ranged[1] else ObjectRef)(table_id=ranged[0], inline=rows)

    @classmethod
    def from_reference(cls, reference: Reference) -> "View":
        context: DataContext | None = None
        if reference.inline is not None:
            context = get_data_context()
            table_id = context.receive_rows(reference.table_id, reference.inline)
            reference = reference.model_copy(update={"table_id": table_id, "inline": None})
        elif (tables := find_tables()) is not None:
            tables.receive(plan_of(reference))
        if isinstance(reference, ViewRef):
            return View(plan_of(reference), context)
        return Object(plan_of(reference).table_id, context)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        def read(reference: Reference) -> View:
            view = View.from_reference(reference)
            if not isinstance(view, cls):
                raise ValueError(f"this is a View, not an {cls.__name__}; annotate the parameter as View")
            return view

        return core_schema.json_or_python_schema(
            json_schema=core_schema.no_info_after_validator_function(read, handler.generate_schema(TaggedReference)),
            python_schema=core_schema.is_instance_schema(cls),
            serialization=core_schema.plain_serializer_function_ser_schema(lambda view: view.reference().model_dump()),
        )


class Object(View):
    """A stored table."""

    def __init__(self, table_id: int, context: "DataContext | None" = None) -> None:
        super().__init__(plans.Scan(table_id=table_id), context)
        self.table_id = table_id

    async def append(self, rows: Any, *, token: str | None = None) -> None:
        """Append the rows of a value or a View.

        Rows with the same token are added once. In a task, the same value or View has the same token in each attempt,
        so that a retry adds nothing twice; rows that only a later attempt appends are added.
        """
        table = await rows.collect() if isinstance(rows, View) else table_from_value(rows)
        if token is None:
            token = self.context.append_token(rows.plan if isinstance(rows, View) else table)
        await self.context.append(self.table_id, table, token)

    async def drop(self) -> None:
        await self.context.drop([self.table_id])


class Groups:
    """Rows grouped by keys, before aggregation."""

    def __init__(self, view: View, keys: Sequence[plans.Named]) -> None:
        self._view = view
        self._keys = tuple(keys)

    def agg(self, *columns: Expression, **named: Any) -> View:
        """One row for each combination of the keys, ordered by them."""
        step = plans.Aggregate(source=self._view.plan, keys=self._keys, columns=plans.named_columns(columns, named))
        return self._view._then(step)


class DataContext(TableStore):
    """`async with DataContext(url):` opens the tables of an engine; temporary ones are dropped at its end."""

    _stack: ExitStack | None = None

    async def __aenter__(self) -> Self:
        if self._stack is not None:
            raise Conflict("this DataContext is open already; make another one")
        await self.run(lambda: self.engine)
        self._stack = ExitStack()
        self._stack.enter_context(using(_Opened(self)))
        return self

    async def __aexit__(self, *error: object) -> None:
        assert self._stack is not None
        self._stack.close()
        self._stack = None
        await self.close()

    async def create_object_from_value(
        self, value: Any, *, name: str | None = None, scope: Scope | str | None = None
    ) -> Object:
        """Store a scalar, a list, a dict of lists, records, or anything with an Arrow C stream."""
        return Object(await self.store_value(value, name=name, scope=scope), self)

    async def create_object_from_url(
        self,
        url: str,
        *,
        format: Literal["parquet", "csv", "arrow"] | None = None,
        name: str | None = None,
        scope: Scope | str | None = None,
    ) -> Object:
        """Store the rows of a Parquet, CSV or Arrow file in the storage zones or on an allowed web server."""
        if self.fetch is None:
            raise Conflict("files need the storage of the settings: use dagmaster.DataContext, or a task")
        chosen = format_of(url, format)
        async with self.fetch(url) as path:
            return Object(await self.store_file(path, chosen, name=name, scope=scope), self)

    async def open(self, name: str, scope: Scope | str = Scope.GLOBAL) -> Object:
        """The Object with this name. Raises UnknownTable."""
        scope = Scope(scope)
        table_id = await self.catalog.find(name, scope) if self.catalog is not None else None
        if table_id is None:
            raise UnknownTable(
                f"no table of scope {scope} is named {name!r}; `dagmaster data list` shows those there are"
            )
        return Object(table_id, self)


class _Opened:
    """Tables of a program: passed to jobs unchanged; the program controls their lifetime."""

    def __init__(self, context: DataContext) -> None:
        self._context = context

    def opened(self) -> DataContext:
        return self._context

    def receive(self, plan: Any) -> None:
        pass

    def pass_on(self, plan: Any) -> None:
        pass

    async def keep_passed(self) -> None:
        pass


def _check_natural(**numbers: int) -> None:
    for name, number in numbers.items():
        if not isinstance(number, int) or isinstance(number, bool) or number < 0:
            raise Invalid(f"{name} must be 0 or more, not {number!r}")
