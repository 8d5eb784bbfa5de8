"""SQL queries of users over stored tables: ClickHouse parses them, and only reads of these tables are run."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any, Final, Protocol

import orjson
import pyarrow as pa

from dagmaster.data.engine import Limits
from dagmaster.data.objects import DataContext
from dagmaster.data.sql import quote, table_name
from dagmaster.data.types import text_of
from dagmaster.errors import Invalid, UnknownTable

MAX_ROWS: Final = 10_000
MAX_BYTES: Final = 16 * 1024 * 1024
MAX_SQL_BYTES: Final = 64 * 1024
SECONDS: Final = 60.0
MEMORY_BYTES: Final = 2 * 1024**3

REFUSAL: Final = "SELECT throwIf(true, {refusal:String}) AS refused"
FORMATTED: Final = "SELECT formatQuerySingleLine({sql:String}) AS sql"
# The inner query needs a format too: otherwise it would get that of EXPLAIN.
SYNTAX_TREE: Final = "EXPLAIN AST SELECT * FROM (\n{}\n) FORMAT Null"
FUNCTIONS: Final = """
SELECT lower(f.name) AS name, f.is_aggregate <> 0 AS is_aggregate, f.origin = 'System' AS is_built_in,
    if(f.alias_to = '', f.name, f.alias_to) AS original, target.categories AS category
FROM system.functions AS f
LEFT JOIN system.functions AS target ON target.name = original
"""
CATEGORIES: Final = frozenset(
    [
        "Arithmetic",
        "Arrays",
        "Bit",
        "Bitmap",
        "Comparison",
        "Conditional",
        "Dates and Times",
        "Distance",
        "Encoding",
        "Financial",
        "Geo",
        "Geo Polygon",
        "Hash",
        "IP Address",
        "JSON",
        "Logical",
        "Map",
        "Mathematical",
        "Null",
        "Random Number",
        "Rounding",
        "String",
        "String Replacement",
        "String Search",
        "String Splitting",
        "Time Series",
        "Time Window",
        "Tuple",
        "Type Conversion",
        "URL",
        "UUID",
    ]
)
OTHERS: Final = frozenset(
    [
        "bar",
        "formatReadableDecimalSize",
        "formatReadableQuantity",
        "formatReadableSize",
        "formatReadableTimeDelta",
        "identity",
        "materialize",
        "throwIf",
        "toTypeName",
        "transform",
    ]
)
SYNTAX: Final = frozenset({"lambda", "exists", "grouping", "untuple"})
NODES: Final = frozenset(
    [
        "SelectWithUnionQuery",
        "SelectIntersectExceptQuery",
        "SelectQuery",
        "ExpressionList",
        "Identifier",
        "TableIdentifier",
        "Literal",
        "Function",
        "Asterisk",
        "QualifiedAsterisk",
        "ColumnsTransformerList",
        "ColumnsExceptTransformer",
        "Subquery",
        "TablesInSelectQuery",
        "TablesInSelectQueryElement",
        "TableExpression",
        "TableJoin",
        "ArrayJoin",
        "OrderByElement",
        "WindowDefinition",
        "WindowListElement",
        "WithElement",
    ]
)
NODE: Final = re.compile(r"(?P<indent> *)(?P<kind>[\w:]+)(?: (?P<name>.*?))?(?: \(alias .*\))?(?: \(children \d+\))?")
MEMBERSHIP: Final = re.compile(r"(global)?(not)?(null)?in(ignoreset)?", re.IGNORECASE)
TOKEN: Final = re.compile(r"'(?:[^'\\]|\\.)*'|`(?:[^`\\]|\\.)*`", re.DOTALL)


@dataclass(frozen=True, slots=True)
class NamedTable:
    table_id: int
    columns: Sequence[str]


class TableNames(Protocol):
    """The names that a query may use."""

    async def find(self, names: Sequence[str]) -> Mapping[str, NamedTable]:
        """The names among these that are tables."""

    async def known(self) -> Sequence[str]:
        """Some table names, as suggestions."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Rows up to the limits. `truncated_by` is the limit that left rows out: "rows" or "bytes"."""

    columns: Sequence[str]
    rows: Sequence[dict[str, Any]]
    truncated_by: str | None = None


@dataclass(frozen=True, slots=True)
class Node:
    """A line of the syntax tree."""

    depth: int
    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class Functions:
    """The functions of an engine, in lower case."""

    registered: frozenset[str]
    aggregates: tuple[str, ...]
    harmless: frozenset[str]

    def allow(self, name: str) -> bool:
        """Combined aggregates, such as sumIf, are not registered."""
        return name in self.harmless or (name not in self.registered and name.startswith(self.aggregates))


# Cached: an engine takes a tenth of a second, and always returns the same.
_known_functions: dict[str, Functions] = {}


def reading(limits: Limits) -> Limits:
    """The limits of an interactive query: read-only, and always bounded."""
    return replace(
        limits,
        memory_bytes=min(limits.memory_bytes or MEMORY_BYTES, MEMORY_BYTES),
        seconds=min(limits.seconds or SECONDS, SECONDS),
        is_read_only=True,
    )


async def run_query(
    context: DataContext, sql: str, tables: TableNames, *, max_rows: int = MAX_ROWS, max_bytes: int = MAX_BYTES
) -> Answer:
    """Run one SELECT over tables by their names. The context must have the limits of `reading`."""
    if len(sql.encode()) > MAX_SQL_BYTES:
        raise Invalid(f"a query has at most {MAX_SQL_BYTES:,} bytes")
    statement = await context.run(lambda: _formatted(context, sql))
    nodes = await context.run(lambda: _checked(context, statement))
    names = sorted({node.name for node in nodes if node.kind == "TableIdentifier"})
    named = await tables.find(names)
    parameters: dict[str, str] = {}
    if unknown := sorted(set(names) - set(named), key=lambda name: "." not in name):
        refusal = f"no table is named {unknown[0][:80]!r}; {_listed(await tables.known())}"
        if "." in unknown[0] or not any(node.kind == "WithElement" for node in nodes):
            raise UnknownTable(refusal)
        # Names that the query itself defines; otherwise they must not reach other tables.
        parameters["refusal"] = text_of(refusal)
    sources = {name: _source(named[name]) if name in named else REFUSAL for name in names}
    query = _complete(statement, sources, max_rows + 1)
    answer = await context.run(lambda: cut_rows(context.engine.batches(query, parameters), max_rows, max_bytes))
    if answer.columns:
        return answer
    # Without rows there are no batches, which carry the columns. The stream may not have ended yet: use a new id.
    return Answer(await context.run(lambda: context.engine.query(query, parameters).column_names), [])


def _formatted(context: DataContext, sql: str) -> str:
    """One statement, normalised by ClickHouse, without comments. It is a parameter: nothing of it is run."""
    statement: str = context.engine.query(FORMATTED, {"sql": text_of(sql)})["sql"][0].as_py()
    # Such names could be mistaken for other lines, or other parts of a line, of the syntax tree.
    if any("\\" in token or " (" in token for token in TOKEN.findall(statement) if token.startswith("`")):
        raise Invalid("names in a query cannot contain backslashes, control characters, backticks or ' ('")
    return statement


def _checked(context: DataContext, statement: str) -> Sequence[Node]:
    """The syntax tree of a query that reads only named tables. Raises Invalid for any other query."""
    lines = context.engine.query(SYNTAX_TREE.format(statement), {})["explain"].to_pylist()
    nodes = [_node(line) for text in lines for line in text.splitlines()]
    if odd := next((node for node in nodes if node.kind not in NODES), None):
        raise Invalid(f"a query is one SELECT without FORMAT, SETTINGS or INTO; {odd.kind} is not allowed")
    for index, node in enumerate(nodes):
        if node.kind == "TableExpression" and nodes[index + 1].kind == "Function":
            raise Invalid(f"{nodes[index + 1].name}() is not allowed: a query reads stored tables by their names")
        if node.kind == "Function" and MEMBERSHIP.fullmatch(node.name) and _has_bare_name(nodes[index + 1 :], node):
            raise Invalid("after IN write a list of values or a query in parentheses, not a name")
    names = {node.name for node in nodes if node.kind == "Function"} - SYNTAX
    functions = _functions(context)
    if refused := sorted(name for name in names if not functions.allow(name.lower())):
        raise Invalid(f"{refused[0]}() is not allowed in a query, or does not exist")
    return nodes


def _functions(context: DataContext) -> Functions:
    if context.url not in _known_functions:
        rows = context.engine.query(FUNCTIONS, {}).to_pylist()
        _known_functions[context.url] = Functions(
            registered=frozenset(row["name"] for row in rows),
            aggregates=tuple(row["name"] for row in rows if row["is_aggregate"]),
            harmless=frozenset(row["name"] for row in rows if _is_harmless(row)),
        )
    return _known_functions[context.url]


def _is_harmless(row: Mapping[str, Any]) -> bool:
    is_named = row["category"] in CATEGORIES or row["original"] in OTHERS
    return bool(row["is_aggregate"] or (row["is_built_in"] and is_named))


def _node(line: str) -> Node:
    matched = NODE.fullmatch(line)
    if matched is None:
        raise Invalid("this query cannot be checked; write it more simply")
    return Node(len(matched["indent"]), matched["kind"], matched["name"] or "")


def _has_bare_name(following: Sequence[Node], function: Node) -> bool:
    """Whether the second argument is a name, which ClickHouse would take for a table."""
    arguments = function.depth + 2
    inside = takewhile(lambda node: node.depth > function.depth, following)
    return any(node.kind == "Identifier" for node in [node for node in inside if node.depth == arguments][1:])


def _source(table: NamedTable) -> str:
    return f"SELECT {', '.join(quote(column) for column in table.columns)} FROM {table_name(table.table_id)}"


def _complete(statement: str, sources: Mapping[str, str], limit: int) -> str:
    """Names are resolved in WITH before the tables of the server."""
    named = ", ".join(f"{quote(name)} AS ({source})" for name, source in sources.items())
    return f"{f'WITH {named} ' if named else ''}SELECT * FROM (\n{statement}\n) LIMIT {limit}"


def cut_rows(batches: Iterable[pa.RecordBatch], max_rows: int, max_bytes: int) -> Answer:
    """The rows up to the limits. Without batches there are no columns either."""
    rows: list[dict[str, Any]] = []
    columns: Sequence[str] = ()
    size = 0
    for batch in batches:
        columns = batch.schema.names
        for row in batch.to_pylist():
            size += len(orjson.dumps(row, default=str, option=orjson.OPT_NON_STR_KEYS))
            if len(rows) == max_rows or size > max_bytes:
                return Answer(columns, rows, "rows" if len(rows) == max_rows else "bytes")
            rows.append(row)
    return Answer(columns, rows)


def _listed(names: Sequence[str]) -> str:
    return f"known are {', '.join(names)}" if names else "no table can be queried yet"
