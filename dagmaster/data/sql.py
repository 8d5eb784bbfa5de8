"""Compile a plan to one ClickHouse statement. Names are quoted and values are parameters; no text becomes SQL."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, assert_never

from dagmaster.data import plans
from dagmaster.data.expressions import Call, Cast, Column, OnlyColumn, Over, Value
from dagmaster.data.functions import AGGREGATES, FORMS, FUNCTIONS, NEIGHBOURS, NEVER_NULL, RANKINGS
from dagmaster.errors import Invalid
from dagmaster.model.problems import did_you_mean

DATABASE = "dagmaster"
ROW_ID = "row_id"
# Columns that carry the order of rows through a query and are not part of its result.
HIDDEN = "__dm_"
ALL_ROWS = "ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING"
JOINS = {"inner": "INNER JOIN", "left": "LEFT JOIN", "right": "RIGHT JOIN", "full": "FULL JOIN"}
FILTERING_JOINS = {"semi": "LEFT SEMI JOIN", "anti": "LEFT ANTI JOIN"}

# Returned as a number, which nobody means.
DATE_TIME = re.compile(r"\bDateTime\b(\('UTC'\))?")

Columns = Callable[[int], Sequence[str]]


@dataclass(frozen=True, slots=True)
class Query:
    """A statement with its parameters and the names of its columns."""

    sql: str
    parameters: Mapping[str, str]
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OrderKey:
    """A hidden column, and its direction."""

    column: str
    descending: bool = False


@dataclass(frozen=True, slots=True)
class Relation:
    """A query with its columns and row order. `base` is the first row_id if row ids are dense."""

    sql: str
    columns: tuple[str, ...]
    order: tuple[OrderKey, ...]
    base: int | None = None
    end: int | None = None


@dataclass(slots=True)
class _Compiler:
    columns_of: Columns
    parameters: dict[str, str] = field(default_factory=dict)
    hidden: int = 0

    def relation(self, plan: Any) -> Relation:
        match plan:
            case plans.Scan():
                return self._scan(plan)
            case plans.Filter():
                return self._filter(plan)
            case plans.Select() | plans.WithColumns():
                return self._compute(plan)
            case plans.Rename():
                return self._rename(plan)
            case plans.Sort():
                return self._sort(plan)
            case plans.Slice():
                return self._slice(plan)
            case plans.Distinct():
                return self._distinct(plan)
            case plans.Explode():
                return self._explode(plan)
            case plans.Join():
                return self._join(plan)
            case plans.Union():
                return self._union(plan)
            case plans.Aggregate():
                return self._aggregate(plan)
            case _:
                assert_never(plan)

    def _scan(self, plan: plans.Scan) -> Relation:
        columns, key = tuple(self.columns_of(plan.table_id)), self._hide()
        listed = ", ".join([f"t.{quote(ROW_ID)} AS {key}", *_plain(columns)])
        return Relation(f"SELECT {listed} FROM {table_name(plan.table_id)} AS t", columns, (OrderKey(key),), base=0)

    def _filter(self, plan: plans.Filter) -> Relation:
        source = self.relation(plan.source)
        condition = self.expression(plan.condition, source.columns)
        return replace(source, sql=f"{_from(source)} WHERE {condition}", base=None)

    def _project(self, source: Relation, columns: Sequence[plans.Named]) -> Relation:
        names = tuple(column.name for column in columns)
        check_names(names)
        values = [f"{self.expression(column.value, source.columns)} AS {quote(column.name)}" for column in columns]
        return replace(source, sql=_from(source, [*_order_columns(source), *values]), columns=names)

    def _compute(self, plan: plans.Select | plans.WithColumns) -> Relation:
        source = self.relation(plan.source)
        is_whole = isinstance(plan, plans.Select)
        return self._project(source, plan.columns if is_whole else _overlay(source.columns, plan.columns))

    def _rename(self, plan: plans.Rename) -> Relation:
        source = self.relation(plan.source)
        for name in plan.names:
            _check_known(name, source.columns)
        renamed = [plans.Named(name=plan.names.get(name, name), value=Column(name=name)) for name in source.columns]
        return self._project(source, renamed)

    def _sort(self, plan: plans.Sort) -> Relation:
        source = self.relation(plan.source)
        keys = tuple(OrderKey(self._hide(), key.descending) for key in plan.keys)
        values = [
            f"{self.expression(key.argument, source.columns)} AS {hidden.column}"
            for key, hidden in zip(plan.keys, keys, strict=True)
        ]
        listed = [*values, *_order_columns(source), *_plain(source.columns)]
        return Relation(_from(source, listed), source.columns, (*keys, *source.order))

    def _slice(self, plan: plans.Slice) -> Relation:
        source = self.relation(plan.source)
        if source.base is not None:
            return self._key_range(source, source.base, plan)
        limit = f"LIMIT {self._bind('UInt64', str(2**63 - 1 if plan.limit is None else plan.limit))}"
        offset = f" OFFSET {self._bind('UInt64', str(plan.offset))}" if plan.offset else ""
        return replace(source, sql=f"{_from(source)} ORDER BY {_order_by(source)} {limit}{offset}")

    def _key_range(self, source: Relation, base: int, plan: plans.Slice) -> Relation:
        """Row ids are dense here: a slice is a range of the primary key."""
        [key] = source.order
        first = base + plan.offset
        if source.end is not None:
            first = min(first, source.end)
        ends = [end for end in (source.end, None if plan.limit is None else first + plan.limit) if end is not None]
        end = min(ends, default=None)
        condition = f"t.{key.column} >= {self._bind('UInt64', str(first))}"
        if end is not None:
            condition += f" AND t.{key.column} < {self._bind('UInt64', str(end))}"
        return replace(source, sql=f"{_from(source)} WHERE {condition}", base=first, end=end)

    def _distinct(self, plan: plans.Distinct) -> Relation:
        source = self.relation(plan.source)
        for name in plan.columns:
            _check_known(name, source.columns)
        by = ", ".join(_plain(plan.columns or source.columns))
        return replace(source, sql=f"{_from(source)} ORDER BY {_order_by(source)} LIMIT 1 BY {by}", base=None)

    def _explode(self, plan: plans.Explode) -> Relation:
        source = self.relation(plan.source)
        _check_known(plan.column, source.columns)
        element, index, array = self._hide(), self._hide(), f"t.{quote(plan.column)}"
        listed = [
            *_order_columns(source),
            f"{index} AS {index}",
            *(f"{element} AS {quote(name)}" if name == plan.column else f"t.{quote(name)}" for name in source.columns),
        ]
        sql = f"{_from(source, listed)} ARRAY JOIN {array} AS {element}, arrayEnumerate({array}) AS {index}"
        return Relation(sql, source.columns, (*source.order, OrderKey(index)))

    def _join(self, plan: plans.Join) -> Relation:
        left, right = self.relation(plan.left), self.relation(plan.right)
        for names, side in ((plan.left_on, left), (plan.right_on, right)):
            for name in names:
                _check_known(name, side.columns)
        pairs = [f"l.{quote(a)} = r.{quote(b)}" for a, b in zip(plan.left_on, plan.right_on, strict=True)]
        listed = [f"l.{key.column} AS {key.column}" for key in left.order]
        if plan.kind in FILTERING_JOINS:
            listed += [f"l.{quote(name)} AS {quote(name)}" for name in left.columns]
            sql = _joined(listed, left, right, FILTERING_JOINS[plan.kind], pairs)
            return replace(left, sql=sql, base=None)
        verb, order = JOINS.get(plan.kind, "ASOF LEFT JOIN"), left.order
        if plan.kind == "asof":
            pairs[-1] = f"l.{quote(plan.left_on[-1])} >= r.{quote(plan.right_on[-1])}"
        else:
            order = (*left.order, *right.order)
            listed += [f"r.{key.column} AS {key.column}" for key in right.order]
        names, values = self._joined_columns(plan, left, right)
        return Relation(_joined([*listed, *values], left, right, verb, pairs), names, order)

    def _joined_columns(self, plan: plans.Join, left: Relation, right: Relation) -> tuple[tuple[str, ...], list[str]]:
        shared = plan.shared_keys
        names = plan.column_names(left.columns, right.columns)
        check_names(names)
        values = [f"l.{quote(name)}" for name in left.columns]
        if plan.kind in ("right", "full"):  # A row without a left side has the keys of the right.
            values = [
                f"coalesce({value}, r.{quote(name)})" if name in shared else value
                for name, value in zip(left.columns, values, strict=True)
            ]
        values += [f"r.{quote(name)}" for name in right.columns if name not in shared]
        return tuple(names), [f"{value} AS {quote(name)}" for name, value in zip(names, values, strict=True)]

    def _union(self, plan: plans.Union) -> Relation:
        relations = [self.relation(source) for source in plan.sources]
        columns, place, number = relations[0].columns, self._hide(), self._hide()
        parts = []
        for index, relation in enumerate(relations):
            if relation.columns != columns:
                raise Invalid(
                    f"tables in a union have the same columns in the same order, not {', '.join(columns)} "
                    f"and {', '.join(relation.columns)}; select() puts them in order"
                )
            listed = [f"{index} AS {place}", f"{_row_number(relation)} AS {number}", *_plain(columns)]
            parts.append(_from(relation, listed))
        sql = " UNION ALL ".join(parts)
        return Relation(sql, columns, (OrderKey(place), OrderKey(number)))

    def _aggregate(self, plan: plans.Aggregate) -> Relation:
        source = self.relation(plan.source)
        names = tuple(column.name for column in (*plan.keys, *plan.columns))
        check_names(names)
        if not names:
            raise Invalid("an aggregation needs a key or an aggregate")
        keys = [self.expression(key.value, source.columns) for key in plan.keys]
        hidden = [OrderKey(self._hide()) for _ in keys]
        or_null = not keys
        values = [self.expression(column.value, source.columns, or_null=or_null) for column in plan.columns]
        listed = [f"{key} AS {order_key.column}" for key, order_key in zip(keys, hidden, strict=True)]
        listed += [f"{value} AS {quote(name)}" for name, value in zip(names, (*keys, *values), strict=True)]
        if not keys:
            hidden = [OrderKey(self._hide())]
            listed.insert(0, f"toUInt8(0) AS {hidden[0].column}")
        grouped = f" GROUP BY {', '.join(keys)}" if keys else ""
        return Relation(_from(source, listed) + grouped, names, tuple(hidden))

    def expression(self, node: Any, columns: Sequence[str], *, or_null: bool = False) -> str:
        match node:
            case Column():
                _check_known(node.name, columns)
                return f"t.{quote(node.name)}"
            case OnlyColumn():
                if len(columns) != 1:
                    raise Invalid(
                        f"operators on a table need one column, and this has {', '.join(columns)}; "
                        "name one: with_columns(y=col('x') + 1)"
                    )
                return f"t.{quote(columns[0])}"
            case Value(text=None):
                return f"CAST(NULL, {literal(node.type)})"
            case Value(text=str(text)):
                return self._bind(node.type, text)
            case Cast():
                value = self.expression(node.argument, columns, or_null=or_null)
                return f"accurateCast({value}, {literal(DATE_TIME.sub('DateTime64(0)', node.type))})"
            case Call():
                return self._call(node, columns, or_null)
            case Over():
                return self._over(node, columns)
            case _:
                assert_never(node)

    def _call(self, node: Call, columns: Sequence[str], or_null: bool) -> str:
        arguments = [self.expression(argument, columns, or_null=or_null) for argument in node.arguments]
        listed = ", ".join(arguments)
        if node.function in AGGREGATES:
            suffix = "OrNull" if or_null and node.function not in NEVER_NULL else ""
            return f"{AGGREGATES[node.function]}{suffix}({listed})"
        if node.function in RANKINGS:
            raise Invalid(f"{node.function}() needs a window: {node.function}(...).over(order_by='x')")
        if node.function in FORMS:
            return FORMS[node.function].format(listed)
        return f"{FUNCTIONS[node.function]}({listed})"

    def _over(self, node: Over, columns: Sequence[str]) -> str:
        arguments = [self.expression(argument, columns) for argument in node.argument.arguments]
        function, frame = node.argument.function, ""
        if function in NEIGHBOURS:
            arguments[0], frame = f"toNullable({arguments[0]})", ALL_ROWS
        name = RANKINGS.get(function) or AGGREGATES[function]
        parts = []
        if node.partition_by:
            parts.append(f"PARTITION BY {', '.join(self.expression(key, columns) for key in node.partition_by)}")
        if node.order_by:
            keys = (_directed(self.expression(key.argument, columns), key.descending) for key in node.order_by)
            parts.append(f"ORDER BY {', '.join(keys)}")
        elif function in RANKINGS:
            raise Invalid(f"{function}() needs an order: {function}(...).over(order_by='x')")
        return f"{name}({', '.join(arguments)}) OVER ({' '.join([*parts, frame]).strip()})"

    def _bind(self, kind: str, text: str) -> str:
        name = f"p{len(self.parameters)}"
        self.parameters[name] = text
        return f"{{{name}:{kind}}}"

    def _hide(self) -> str:
        self.hidden += 1
        return f"{HIDDEN}{self.hidden}"


def compile_rows(plan: Any, columns_of: Columns) -> Query:
    """All rows in their order."""
    relation, parameters = _compile(plan, columns_of)
    sql = f"{_from(relation, _plain(relation.columns))} ORDER BY {_order_by(relation)}"
    return Query(sql, parameters, relation.columns)


def compile_count(plan: Any, columns_of: Columns) -> Query:
    relation, parameters = _compile(plan, columns_of)
    return Query(f"SELECT count() AS rows FROM ({relation.sql})", parameters, ("rows",))


def compile_stored(plan: Any, columns_of: Columns) -> Query:
    """All rows with dense row ids from 0, to be stored."""
    relation, parameters = _compile(plan, columns_of)
    row_id = f"{_row_number(relation)} AS {quote(ROW_ID)}"
    return Query(_from(relation, [row_id, *_plain(relation.columns)]), parameters, relation.columns)


def _compile(plan: Any, columns_of: Columns) -> tuple[Relation, Mapping[str, str]]:
    plans.check_depth(plan)
    compiler = _Compiler(columns_of)
    return compiler.relation(plan), compiler.parameters


def table_name(table_id: int) -> str:
    return f"{DATABASE}.o{int(table_id)}"


def quote(name: str) -> str:
    """An identifier."""
    return "`" + name.replace("\\", "\\\\").replace("`", "\\`") + "`"


def literal(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _from(source: Relation, listed: Sequence[str] | None = None) -> str:
    listed = listed if listed is not None else [*_order_columns(source), *_plain(source.columns)]
    return f"SELECT {', '.join(listed)} FROM ({source.sql}) AS t"


def _joined(listed: Sequence[str], left: Relation, right: Relation, verb: str, pairs: Sequence[str]) -> str:
    return f"SELECT {', '.join(listed)} FROM ({left.sql}) AS l {verb} ({right.sql}) AS r ON {' AND '.join(pairs)}"


def _plain(columns: Sequence[str]) -> list[str]:
    return [f"t.{quote(name)} AS {quote(name)}" for name in columns]


def _order_columns(source: Relation) -> list[str]:
    return [f"t.{key.column} AS {key.column}" for key in source.order]


def _order_by(source: Relation) -> str:
    return ", ".join(_directed(f"t.{key.column}", key.descending) for key in source.order)


def _directed(value: str, descending: bool) -> str:
    return f"{value} {'DESC' if descending else 'ASC'} NULLS LAST"


def _row_number(source: Relation) -> str:
    if source.base is not None:
        [key] = source.order
        return f"t.{key.column} - {source.base}"
    return f"toUInt64(row_number() OVER (ORDER BY {_order_by(source)})) - 1"


def _overlay(columns: Sequence[str], computed: Sequence[plans.Named]) -> list[plans.Named]:
    by_name = {column.name: column for column in computed}
    kept = [by_name.pop(name, plans.Named(name=name, value=Column(name=name))) for name in columns]
    return [*kept, *by_name.values()]


def _check_known(name: str, columns: Sequence[str]) -> None:
    if name not in columns:
        hint = did_you_mean(name, columns) or "."
        raise Invalid(f"there is no column {name!r}{hint} The columns are {', '.join(columns)}")


def check_names(names: Sequence[str]) -> None:
    """Raises Invalid for names that a table's columns cannot have."""
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise Invalid(f"two columns have the same name: {', '.join(repeated)}")
    for name in names:
        if not name or "\0" in name:
            raise Invalid("a column needs a name without NUL characters")
        if name == ROW_ID or name.startswith(HIDDEN):
            raise Invalid(f"a column cannot be named {name!r}: the name is reserved for the order of rows")
