"""Plans: the computation of a table, as immutable values that are passed between tasks as JSON."""

from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import pairwise
from typing import Annotated, Any, Literal, Self

import orjson
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from dagmaster.data.expressions import AnyNode, SortKey, as_expression
from dagmaster.errors import Invalid

VERSION = 1
MAX_DEPTH = 200

JoinKind = Literal["inner", "left", "right", "full", "semi", "anti", "asof"]
Natural = Annotated[int, Field(ge=0)]


class Step(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Named(Step):
    """A computed column."""

    name: str = Field(min_length=1)
    value: AnyNode


class Scan(Step):
    """All rows of an Object, in the order of their row_id."""

    op: Literal["scan"] = "scan"
    table_id: Annotated[int, Field(gt=0)]


class Filter(Step):
    op: Literal["filter"] = "filter"
    source: "Plan"
    condition: AnyNode


class Select(Step):
    op: Literal["select"] = "select"
    source: "Plan"
    columns: Annotated[tuple[Named, ...], Field(min_length=1)]


class WithColumns(Step):
    op: Literal["with_columns"] = "with_columns"
    source: "Plan"
    columns: tuple[Named, ...]


class Rename(Step):
    op: Literal["rename"] = "rename"
    source: "Plan"
    names: dict[str, str]


class Sort(Step):
    """Rows with equal keys keep their order."""

    op: Literal["sort"] = "sort"
    source: "Plan"
    keys: Annotated[tuple[SortKey, ...], Field(min_length=1)]


class Slice(Step):
    op: Literal["slice"] = "slice"
    source: "Plan"
    offset: Natural = 0
    limit: Natural | None = None


class Distinct(Step):
    """The first row of each combination of these columns, or of all."""

    op: Literal["distinct"] = "distinct"
    source: "Plan"
    columns: tuple[str, ...] = ()


class Explode(Step):
    """One row per element of an array; rows with an empty array are dropped."""

    op: Literal["explode"] = "explode"
    source: "Plan"
    column: str


class Join(Step):
    op: Literal["join"] = "join"
    left: "Plan"
    right: "Plan"
    kind: JoinKind = "inner"
    left_on: tuple[str, ...]
    right_on: tuple[str, ...]
    suffix: str = "_right"

    @model_validator(mode="after")
    def _has_keys(self) -> Self:
        if not self.left_on or len(self.left_on) != len(self.right_on):
            raise ValueError("a join needs as many keys on the left as on the right, and at least one")
        if self.kind == "asof" and len(self.left_on) < 2:
            raise ValueError("an asof join needs a key of equality and then the key that is ordered")
        return self

    @property
    def shared_keys(self) -> set[str]:
        """The keys with the same name on both sides, which are one column."""
        shared = {left for left, right in zip(self.left_on, self.right_on, strict=True) if left == right}
        return shared - {self.left_on[-1]} if self.kind == "asof" else shared

    def column_names(self, left: Sequence[str], right: Sequence[str]) -> list[str]:
        """Names on the right that the left also has get the suffix, unless they are shared keys."""
        added = [name for name in right if name not in self.shared_keys]
        return [*left, *(f"{name}{self.suffix}" if name in left else name for name in added)]


class Union(Step):
    """The rows of all sources in order. They must have the same columns in the same order."""

    op: Literal["union"] = "union"
    sources: Annotated[tuple["Plan", ...], Field(min_length=1)]


class Aggregate(Step):
    """One row per combination of the keys, ordered by them; without keys one row."""

    op: Literal["aggregate"] = "aggregate"
    source: "Plan"
    keys: tuple[Named, ...] = ()
    columns: tuple[Named, ...] = ()


Plan = Annotated[
    Scan | Filter | Select | WithColumns | Rename | Sort | Slice | Distinct | Explode | Join | Union | Aggregate,
    Field(discriminator="op"),
]
for _step in (Filter, Select, WithColumns, Rename, Sort, Slice, Distinct, Explode, Join, Union, Aggregate):
    _step.model_rebuild()

_PLAN: TypeAdapter[Any] = TypeAdapter(Plan)


def named_columns(columns: Sequence[Any], named: Mapping[str, Any]) -> tuple[Named, ...]:
    found = []
    for column in columns:
        expression = as_expression(column, column=True)
        if expression.name is None:
            raise Invalid("this column has no name; give it one: name=expression, or expression.alias('name')")
        found.append(Named(name=expression.name, value=expression.node))
    return (*found, *(Named(name=name, value=as_expression(value).node) for name, value in named.items()))


def sources_of(plan: Any) -> tuple[Any, ...]:
    match plan:
        case Scan():
            return ()
        case Join():
            return plan.left, plan.right
        case Union():
            return plan.sources
        case _:
            return (plan.source,)


def tables_of(plan: Any) -> frozenset[int]:
    """The ids of the Objects that the plan reads."""
    return frozenset(step.table_id for step in _steps(plan) if isinstance(step, Scan))


def write_plan(plan: Any) -> dict[str, Any]:
    return {"version": VERSION, "root": _PLAN.dump_python(plan, mode="json", exclude_defaults=False)}


def digest_of_plan(plan: Any) -> str:
    """Not of the rows: sums of floats may differ in the last digit when computed again."""
    return sha256(orjson.dumps(write_plan(plan), option=orjson.OPT_SORT_KEYS)).hexdigest()


def read_plan(written: Any) -> Any:
    """Raises Invalid unless it is a plan of this version."""
    match written:
        case {"version": 1, "root": root}:
            pass
        case {"version": other}:
            raise Invalid(f"a plan of version {other!r} cannot be read; this release reads version {VERSION}")
        case _:
            raise Invalid("a plan is an object with `version` and `root`")
    try:
        return _PLAN.validate_python(root)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        raise Invalid(f"not a valid plan: {'.'.join(map(str, fault['loc']))}: {fault['msg']}") from error
    except RecursionError as error:
        raise Invalid(f"a plan may be at most {MAX_DEPTH} steps deep") from error


def check_depth(plan: Any) -> None:
    """Raises Invalid for plans too deep for a query."""
    level, depth = [plan], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise Invalid(f"a plan may be at most {MAX_DEPTH} steps deep; materialize a part of it")
        level = [source for step in level for source in sources_of(step)]


def is_range(plan: Any) -> bool:
    """Whether its rows are a range of row ids, so that any part of them is one too."""
    while isinstance(plan, Slice | Select | WithColumns | Rename):
        plan = plan.source
    return isinstance(plan, Scan)


def chunk_bounds(rows: int, size: int, count: int | None = None) -> list[tuple[int, int]]:
    """The bounds of chunks of this size, or of `count` chunks of about equal size; none is empty."""
    starts = range(0, rows, size) if count is None else [rows * number // count for number in range(count)]
    return [(start, end) for start, end in pairwise([*starts, rows]) if start < end]


def _steps(plan: Any) -> Iterator[Any]:
    waiting = [plan]
    while waiting:
        step = waiting.pop()
        yield step
        waiting += sources_of(step)
