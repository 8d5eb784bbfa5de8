"""References: tables as they travel between tasks, without their rows unless they are few."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal, Self

import orjson
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    field_validator,
    model_serializer,
    model_validator,
)

from dagmaster.data.expressions import Expression, SortKey, as_expression, call, col
from dagmaster.data.plans import Filter, Named, Scan, Select, Slice, Sort, read_plan, tables_of, write_plan
from dagmaster.errors import Invalid

COMPARISONS: Mapping[str, str] = {
    "=": "equals",
    "!=": "not_equals",
    "<": "less",
    "<=": "less_or_equals",
    ">": "greater",
    ">=": "greater_or_equals",
    "in": "is_in",
}
WHERE_FORMS = 'an object such as {"x": 1}, a comparison such as ["x", ">", 1], or a list of comparisons'

MAX_INLINE_BYTES: Final = 64 * 1024

Natural = Annotated[int, Field(ge=0)]


class InlineRows(BaseModel):
    """The rows of a small table in its reference: `values` has a list for each of the `columns`.

    Without `types`, which are those of ClickHouse, the values say what they are.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    columns: Annotated[list[str], Field(min_length=1)]
    values: list[list[Any]]
    types: list[str] | None = None

    @model_validator(mode="after")
    def _is_a_small_table(self) -> Self:
        if not len(self.columns) == len(self.values) == len(self.types or self.columns):
            raise ValueError("there is a list of values for each column, and a type if there are types")
        if len({len(values) for values in self.values}) > 1:
            raise ValueError("the lists of values differ in length")
        if (size := len(orjson.dumps([self.columns, self.values, self.types]))) > MAX_INLINE_BYTES:
            raise ValueError(
                f"inline rows have at most {MAX_INLINE_BYTES:,} bytes, not {size:,}: store them as an Object"
            )
        return self

    def __len__(self) -> int:
        return len(self.values[0])

    def part(self, offset: int, limit: int | None) -> "InlineRows":
        end = None if limit is None else offset + limit
        return self.model_copy(update={"values": [values[offset:end] for values in self.values]})


class TableRef(BaseModel):
    """The table, by its id or with its rows."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    table_id: int | str = 0
    inline: InlineRows | None = None

    @model_validator(mode="after")
    def _has_rows(self) -> Self:
        if self.table_id == 0 and self.inline is None:
            raise ValueError("a reference names a table, or has inline rows")
        return self

    @model_serializer(mode="wrap")
    def _without_unset(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        written: dict[str, Any] = serialize(self)
        return {key: value for key, value in written.items() if value is not None}


class ObjectRef(TableRef):
    """A table of the data plane, passed on without its rows, or with few."""

    object_type: Literal["object"] = "object"


class ViewRef(TableRef):
    """Some rows of a table, in the order of their row_id.

    `offset` and `limit` are a range of row ids, and `where` filters these rows. It is data, never SQL. A `plan`
    replaces all of them.
    """

    object_type: Literal["view"] = "view"
    offset: Natural | None = None
    limit: Natural | None = None
    where: Any = None
    columns: list[str] | None = None
    order_by: list[str] | None = None
    plan: dict[str, Any] | None = None

    @field_validator("where")
    @classmethod
    def _is_data(cls, where: Any) -> Any:
        try:
            conditions(where)
        except Invalid as error:
            raise ValueError(str(error)) from None
        return where

    @model_validator(mode="after")
    def _has_one_origin(self) -> Self:
        if self.plan is not None and self.inline is not None:
            raise ValueError("a plan names the tables that it reads: it cannot have inline rows")
        return self


Reference = ObjectRef | ViewRef
TaggedReference = Annotated[Reference, Field(discriminator="object_type")]
REFERENCES: Mapping[str, type[ObjectRef] | type[ViewRef]] = {"object": ObjectRef, "view": ViewRef}


class Referable(ABC):
    """A table that knows its reference."""

    plan: Any

    @abstractmethod
    async def collect(self) -> Any: ...

    @abstractmethod
    def reference(self) -> Reference: ...


class Chunks(tuple[Referable, ...]):
    """Consecutive Views. `map` makes one task of each."""


def find_reference(value: Any) -> Reference | None:
    """The reference that this JSON is; None for everything else.

    Raises Invalid if its `where` is not data, or if its inline rows are not a small table.
    """
    match value:
        case {"object_type": str(kind), "inline": {"columns": list(), "values": list()}} if kind in REFERENCES:
            try:
                return REFERENCES[kind].model_validate(value)
            except ValidationError as error:
                fault = error.errors(include_url=False)[0]
                raise Invalid(
                    f"not a reference with inline rows: {fault['msg'].removeprefix('Value error, ')}"
                ) from error
        case {"object_type": str(kind), "table_id": int() | str()} if kind in REFERENCES:
            conditions(value.get("where"))
            try:
                return REFERENCES[kind].model_validate(value)
            except ValidationError:
                return None  # User data that resembles a reference.
        case _:
            return None


def reference_to(plan: Any) -> Reference:
    match plan:
        case Scan(table_id=table_id):
            return ObjectRef(table_id=table_id)
        case Slice(source=Scan(table_id=table_id), offset=offset, limit=limit):
            return ViewRef(table_id=table_id, offset=offset or None, limit=limit)
        case _:
            return ViewRef(table_id=min(tables_of(plan)), plan=write_plan(plan))


def plan_of(reference: Reference) -> Any:
    """Raises Invalid for an invalid reference."""
    try:
        plan: Any = Scan(table_id=int(reference.table_id))
    except ValueError as error:
        raise Invalid(f"{str(reference.table_id)[:40]!r} is not the id of a table") from error
    if isinstance(reference, ObjectRef):
        return plan
    if reference.plan is not None:
        return read_plan(reference.plan)
    if reference.offset or reference.limit is not None:
        plan = Slice(source=plan, offset=reference.offset or 0, limit=reference.limit)
    for condition in conditions(reference.where):
        plan = Filter(source=plan, condition=condition.node)
    if reference.order_by:
        plan = Sort(source=plan, keys=tuple(SortKey(argument=col(name).node) for name in reference.order_by))
    if reference.columns is not None:
        plan = Select(source=plan, columns=tuple(Named(name=name, value=col(name).node) for name in reference.columns))
    return plan


def conditions(where: Any) -> list[Expression]:
    """All conditions must hold. Raises Invalid for text, which would be the author's SQL."""
    match where:
        case None:
            return []
        case str():
            raise Invalid(f"`where` is not SQL text: write {WHERE_FORMS}")
        case dict():
            return [_equality(name, value) for name, value in where.items()]
        case [str() as name, str() as comparison, value] if comparison in COMPARISONS:
            return [call(COMPARISONS[comparison], col(name), as_expression(value))]
        case list() if all(isinstance(comparison, list) for comparison in where):
            return [condition for comparison in where for condition in conditions(comparison)]
        case _:
            raise Invalid(f"`where` cannot be read: write {WHERE_FORMS}")


def _equality(name: Any, value: Any) -> Expression:
    if not isinstance(name, str):
        raise Invalid(f"`where` cannot be read: write {WHERE_FORMS}")
    if value is None:
        return col(name).is_null()
    return col(name).is_in(value) if isinstance(value, Sequence) and not isinstance(value, str) else col(name) == value
