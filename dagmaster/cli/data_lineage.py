"""The lineage of a table as a tree."""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from rich.markup import escape
from rich.tree import Tree

if TYPE_CHECKING:
    from dagmaster.data.column_lineage import ColumnSource

    Sources = Mapping[str, Sequence[ColumnSource]]

PLAN_SHOWN: Final = 200


def lineage_record(record: Mapping[str, Any], sources: "Sources") -> dict[str, Any]:
    """With ids as strings, as everywhere in JSON."""
    return {
        **record,
        "inputs": [str(table_id) for table_id in record["inputs"]],
        "column_sources": {
            name: [{"object_id": str(source.object_id), "column": source.column} for source in origins]
            for name, origins in sources.items()
        },
    }


def lineage_tree(rows: Sequence[Mapping[str, Any]], sources: "Mapping[int, Sources]") -> Tree:
    """The first row is the root. A table that several others use is expanded only once.

    `sources` are the source columns to show.
    """
    tables = {row["object_id"]: row for row in rows}
    root = Tree(_label(rows[0]))
    described = {rows[0]["object_id"]}
    waiting = deque([(root, rows[0])])
    while waiting:
        branch, row = waiting.popleft()
        if row["plan"]:
            branch.add(f"[dim]{_shortened(_operations(row['plan']['root']))}[/]")
        for name, origins in sources.get(row["object_id"], {}).items():
            listed = ", ".join(f"{_table_name(tables, origin.object_id)}.{origin.column}" for origin in origins)
            branch.add(f"{escape(name)} [dim]from[/] {escape(listed) or 'no column'}")
        for table_id in row["inputs"]:
            table = tables.get(table_id)
            if table is None:
                branch.add(f"{table_id} (left out)")
            elif table_id in described:
                branch.add(f"{_name(table)} (shown elsewhere)")
            else:
                described.add(table_id)
                waiting.append((branch.add(_label(table)), table))
    return root


def _table_name(tables: Mapping[int, Mapping[str, Any]], table_id: int) -> str:
    return str((table_id in tables and tables[table_id]["name"]) or table_id)


def _label(row: Mapping[str, Any]) -> str:
    if row["state"] is None:
        return f"{row['object_id']} (dropped)"
    parts = [_name(row)]
    if row["row_count"] is not None:
        parts.append(f"{row['row_count']:,} rows")
    if row["task_id"]:
        workflow = f" of {row['workflow_id']}" if row["workflow_id"] else ""
        parts.append(escape(f"by task {row['task_id']}{workflow}"))
    return ", ".join(parts)


def _name(row: Mapping[str, Any]) -> str:
    return f"{escape(row['name'])} ({row['object_id']})" if row["name"] else str(row["object_id"])


def _operations(step: Mapping[str, Any]) -> str:
    """Such as `aggregate(filter(248432765007177249))`."""
    match step:
        case {"op": "scan", "table_id": table_id}:
            return str(table_id)
        case {"op": "join", "kind": kind, "left": left, "right": right}:
            return f"{kind} join({_operations(left)}, {_operations(right)})"
        case {"op": "union", "sources": sources}:
            return f"union({', '.join(map(_operations, sources))})"
        case _:
            return f"{step['op']}({_operations(step['source'])})"


def _shortened(text: str) -> str:
    return text if len(text) <= PLAN_SHOWN else f"{text[:PLAN_SHOWN]}…"
