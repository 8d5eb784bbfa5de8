"""The columns of stored tables from which the columns of a plan are computed."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, assert_never

from dagmaster.data import plans
from dagmaster.data.expressions import Call, Cast, Column, OnlyColumn, Over, Value
from dagmaster.data.sql import FILTERING_JOINS
from dagmaster.errors import Invalid

# The columns of a table; None for a dropped table.
KnownColumns = Callable[[int], Sequence[str] | None]


@dataclass(frozen=True, slots=True, order=True)
class ColumnSource:
    """A column of a stored table."""

    object_id: int
    column: str


def columns_by_source(rows: Iterable[Mapping[str, Any]]) -> dict[int, dict[str, list[ColumnSource]]]:
    """For each table of a lineage with a plan: its columns, and the columns they are computed from.

    Conditions, sort keys and join keys select rows; they are not part of a column's value.
    """
    tables = {row["object_id"]: row for row in rows}

    def known(table_id: int) -> Sequence[str] | None:
        columns = tables[table_id]["columns"] if table_id in tables else None
        return [column["name"] for column in columns] if columns else None

    traced = {}
    for object_id, row in tables.items():
        if not row["plan"] or not row["columns"]:
            continue
        try:
            plan = plans.read_plan(row["plan"])
        except Invalid:  # A plan of another release.
            continue
        names = [column["name"] for column in row["columns"]]
        traced[object_id] = {name: sorted(sources_of_column(plan, name, known)) for name in names}
    return traced


def sources_of_column(plan: Any, name: str, known: KnownColumns) -> frozenset[ColumnSource]:
    match plan:
        case plans.Scan():
            return frozenset({ColumnSource(plan.table_id, name)})
        case plans.Filter() | plans.Sort() | plans.Slice() | plans.Distinct() | plans.Explode():
            return sources_of_column(plan.source, name, known)
        case plans.Select():
            return _computed(plan.columns, plan.source, name, known)
        case plans.WithColumns():
            if any(column.name == name for column in plan.columns):
                return _computed(plan.columns, plan.source, name, known)
            return sources_of_column(plan.source, name, known)
        case plans.Rename():
            old_names = {new: old for old, new in plan.names.items()}
            return sources_of_column(plan.source, old_names.get(name, name), known)
        case plans.Aggregate():
            return _computed((*plan.keys, *plan.columns), plan.source, name, known)
        case plans.Union():
            return frozenset().union(*(sources_of_column(source, name, known) for source in plan.sources))
        case plans.Join():
            return _joined(plan, name, known)
        case _:
            assert_never(plan)


def _computed(columns: Sequence[plans.Named], source: Any, name: str, known: KnownColumns) -> frozenset[ColumnSource]:
    nodes = [column.value for column in columns if column.name == name]
    names = {used for node in nodes for used in _names_in(node, source, known)}
    return frozenset().union(*(sources_of_column(source, used, known) for used in names))


def _names_in(node: Any, source: Any, known: KnownColumns) -> Iterator[str]:
    match node:
        case Column():
            yield node.name
        case OnlyColumn():
            yield from _columns_of(source, known) or ()
        case Value():
            return
        case Cast():
            yield from _names_in(node.argument, source, known)
        case Call():
            for argument in node.arguments:
                yield from _names_in(argument, source, known)
        case Over():
            for part in (node.argument, *node.partition_by, *(key.argument for key in node.order_by)):
                yield from _names_in(part, source, known)
        case _:
            assert_never(node)


def _joined(plan: plans.Join, name: str, known: KnownColumns) -> frozenset[ColumnSource]:
    if plan.kind in FILTERING_JOINS:
        return sources_of_column(plan.left, name, known)
    left, right = _columns_of(plan.left, known), _columns_of(plan.right, known)
    origins: frozenset[ColumnSource] = frozenset()
    if left is None or name in left:
        origins |= sources_of_column(plan.left, name, known)
        if name in plan.shared_keys and plan.kind in (
            "right",
            "full",
        ):  # A row without a left side has the key of the right.
            origins |= sources_of_column(plan.right, name, known)
    elif right is None or name in right:
        origins |= sources_of_column(plan.right, name, known)
    else:
        origins |= sources_of_column(plan.right, name.removesuffix(plan.suffix), known)
    return origins


def _columns_of(plan: Any, known: KnownColumns) -> Sequence[str] | None:
    """None if they depend on a dropped table."""
    match plan:
        case plans.Scan():
            return known(plan.table_id)
        case plans.Filter() | plans.Sort() | plans.Slice() | plans.Distinct() | plans.Explode():
            return _columns_of(plan.source, known)
        case plans.Select():
            return [column.name for column in plan.columns]
        case plans.Aggregate():
            return [column.name for column in (*plan.keys, *plan.columns)]
        case plans.WithColumns():
            columns = _columns_of(plan.source, known)
            added = [column.name for column in plan.columns]
            return None if columns is None else list(dict.fromkeys([*columns, *added]))
        case plans.Rename():
            columns = _columns_of(plan.source, known)
            return None if columns is None else [plan.names.get(column, column) for column in columns]
        case plans.Union():
            return _columns_of(plan.sources[0], known)
        case plans.Join():
            left, right = _columns_of(plan.left, known), _columns_of(plan.right, known)
            if left is None or plan.kind in FILTERING_JOINS:
                return left
            return None if right is None else plan.column_names(left, right)
        case _:
            assert_never(plan)
