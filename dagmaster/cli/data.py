"""Tables of Python tasks."""

import asyncio
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from dagmaster.cli.columns import Listing
from dagmaster.cli.data_lineage import lineage_record, lineage_tree
from dagmaster.cli.failures import tell
from dagmaster.cli.options import JsonOutput, begin
from dagmaster.cli.output import as_record, at_local_time, console, print_fact, print_json, print_or_tell
from dagmaster.errors import Conflict, Invalid
from dagmaster.model.data_object import DataObjectState, Scope

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from dagmaster.settings import Settings

Table = Annotated[str, typer.Argument(metavar="TABLE", help="Id of a table, or name of a global one.")]


class FileFormat(StrEnum):
    PARQUET = "parquet"
    CSV = "csv"
    ARROW = "arrow"


app = typer.Typer(name="data", add_completion=False, no_args_is_help=True)


@app.callback()
def root() -> None:
    """List, query, trace, export and drop tables of Python tasks.

    \b
    Examples:
      dagmaster data list --scope global
    """


@app.command("list")
def list_all(
    ctx: typer.Context,
    scope: Annotated[Scope | None, typer.Option(help="Only tables of this scope.")] = None,
    job_id: Annotated[int | None, typer.Option("--job", metavar="JOB_ID", help="Only tables of this job.")] = None,
    limit: Annotated[int, typer.Option(help="Maximum number of tables.", min=1, max=10_000)] = 100,
    as_json: JsonOutput = False,
) -> None:
    """List tables, newest first.

    \b
    Examples:
      dagmaster data list
      dagmaster data list --scope global --json
    """
    from dagmaster.cli.sessions import run_in_session
    from dagmaster.store.data_objects import list_objects

    rows = run_in_session(begin(ctx), lambda conn: list_objects(conn, scope=scope, job_id=job_id, limit=limit))
    if print_or_tell(rows, "no tables", as_json=as_json):
        return
    listing = Listing(("TABLE", "NAME", "SCOPE", "STATE", "ROWS", "BYTES", "JOB", "CREATED"), folds=("NAME",), fixed=4)
    for row in rows:
        listing.add(
            str(row["object_id"]),
            escape(row["name"] or ""),
            row["scope"],
            row["state"],
            _number(row["row_count"]),
            _number(row["size_bytes"]),
            str(row["job_id"] or ""),
            at_local_time(row["created_at"]),
        )
    listing.print(console())


@app.command()
def show(ctx: typer.Context, table: Table, as_json: JsonOutput = False) -> None:
    """Show a table's columns and origin.

    \b
    Examples:
      dagmaster data show sales
    """
    row = _entry(begin(ctx), table)
    if as_json:
        print_json(as_record(row))
        return
    for name in ("object_id", "name", "scope", "state", "job_id", "task_id"):
        if row[name] is not None:
            print_fact(name.removesuffix("_id").replace("object", "table"), str(row[name]))
    print_fact("rows", _number(row["row_count"]))
    print_fact("bytes", _number(row["size_bytes"]))
    print_fact("created", at_local_time(row["created_at"]))
    print_fact("columns", ", ".join(f"{column['name']} {column['type']}" for column in row["columns"] or ()))
    if row["sql"]:
        print_fact("sql", row["sql"])


@app.command()
def head(
    ctx: typer.Context,
    table: Table,
    rows: Annotated[int, typer.Option("--rows", "-n", help="Number of rows.", min=1, max=10_000)] = 10,
    as_json: JsonOutput = False,
) -> None:
    """Show the first rows of a table.

    \b
    Examples:
      dagmaster data head sales -n 5
    """
    settings = begin(ctx)
    entry = _ready_entry(settings, table)
    records: list[dict[str, Any]] = _use_table(settings, entry, lambda stored: stored.limit(rows).records())
    if as_json:
        print_json(records)
        return
    _print_rows([column["name"] for column in entry["columns"]], records)
    if entry["row_count"] > len(records):
        tell(f"the first {len(records):,} of {entry['row_count']:,} rows")


@app.command()
def query(
    ctx: typer.Context,
    sql: Annotated[str, typer.Argument(metavar="SQL", help="A ClickHouse SELECT statement.")],
    rows: Annotated[int, typer.Option("--rows", "-n", help="Maximum number of rows.", min=1, max=10_000)] = 100,
    as_json: JsonOutput = False,
) -> None:
    """Query tables with SQL.

    Refer to a table by its global name, by "JOB_ID.NAME" or by its id; quote the
    last two. Queries are read-only.

    \b
    Examples:
      dagmaster data query 'SELECT shop, sum(units) FROM sales GROUP BY shop'
      dagmaster data query 'SELECT count() FROM "248432765007177249"' --json
    """
    from dagmaster.cli.sessions import existing_database, session
    from dagmaster.service.data_query import query_tables

    settings = begin(ctx)
    with existing_database(settings) as dsn:
        answer = asyncio.run(query_tables(partial(session, dsn), settings, sql, max_rows=rows))
    if as_json:
        print_json({"columns": answer.columns, "rows": answer.rows, "truncated_by": answer.truncated_by})
        return
    _print_rows(answer.columns, answer.rows)
    if answer.truncated_by:
        tell(f"truncated: the first {len(answer.rows):,} rows, by the limit of {answer.truncated_by}")


@app.command()
def export(
    ctx: typer.Context,
    table: Table,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File to write: .parquet, .csv or .arrow.")],
    format: Annotated[FileFormat | None, typer.Option(help="File format; default: by the extension.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")] = False,
) -> None:
    """Write a table to a Parquet, CSV or Arrow file.

    The file is created when all rows are written.

    \b
    Examples:
      dagmaster data export sales sales.parquet
    """
    settings = begin(ctx)
    entry = _ready_entry(settings, table)
    if file.exists() and not overwrite:
        raise Conflict(f"{file} exists; choose another name, or replace it with --overwrite")
    if not file.parent.is_dir():
        raise Invalid(f"there is no folder {file.parent}; create it first")

    _use_table(settings, entry, lambda stored: stored.export(file, format.value if format else None))
    typer.echo(f"Wrote {entry['row_count']:,} rows to {file}")


@app.command()
def lineage(
    ctx: typer.Context,
    table: Table,
    columns: Annotated[bool, typer.Option("--columns", help="Show the source columns of each column.")] = False,
    as_json: JsonOutput = False,
) -> None:
    """Show the tables and tasks that a table comes from.

    Prints a tree: below each table, the tables that it was computed from. Of a
    dropped table, only the id is known.

    \b
    Examples:
      dagmaster data lineage sales
      dagmaster data lineage sales --columns
      dagmaster data lineage sales --json
    """
    from dagmaster.cli.sessions import run_in_session
    from dagmaster.data.column_lineage import columns_by_source
    from dagmaster.store.data_objects import lineage as find_lineage

    settings = begin(ctx)
    object_id = _entry(settings, table)["object_id"]
    rows = run_in_session(settings, lambda conn: find_lineage(conn, object_id))
    sources = columns_by_source(rows)
    if as_json:
        print_json([lineage_record(as_record(row), sources.get(row["object_id"], {})) for row in rows])
        return
    console().print(lineage_tree(rows, sources if columns else {}))


@app.command()
def drop(ctx: typer.Context, table: Table) -> None:
    """Drop a table.

    \b
    Examples:
      dagmaster data drop sales
    """
    from dagmaster.cli.sessions import run_in_session
    from dagmaster.data import DataContext
    from dagmaster.data.configured import url_at
    from dagmaster.store.data_objects import expire, forget

    settings = begin(ctx)
    entry = _entry(settings, table)
    object_id = entry["object_id"]
    run_in_session(settings, lambda conn: expire(conn, [object_id]))

    async def drop_table() -> None:
        async with DataContext(url_at(entry["location"])) as context:
            await context.drop([object_id])

    try:
        asyncio.run(drop_table())
    except Conflict:
        typer.echo(f"Marked table {object_id}; the process that has the tables open drops it after its next task")
        return
    run_in_session(settings, lambda conn: forget(conn, [object_id]))
    typer.echo(f"Dropped table {object_id}")


def _print_rows(columns: "Sequence[str]", rows: "Sequence[Mapping[str, Any]]") -> None:
    listing = Listing(tuple(map(escape, columns)))
    for row in rows:
        listing.add(*("" if value is None else escape(str(value)) for value in row.values()))
    listing.print(console())


def _entry(settings: "Settings", table: str) -> dict[str, Any]:
    from dagmaster.cli.sessions import run_in_session
    from dagmaster.store.data_objects import get_object

    return run_in_session(settings, lambda conn: get_object(conn, table))


def _use_table(settings: "Settings", entry: dict[str, Any], work: "Callable[[Any], Awaitable[Any]]") -> Any:
    """Open the table; its rows are in the engine, or in its catalogue entry."""
    from dagmaster.cli.sessions import existing_database, session
    from dagmaster.data import DataContext, Object
    from dagmaster.data.configured import url_at
    from dagmaster.service.data_catalog import DatabaseCatalog

    async def use(dsn: str) -> Any:
        catalog = DatabaseCatalog(partial(session, dsn), entry["location"])
        context = DataContext(url_at(entry["location"]), catalog=catalog)
        try:
            return await work(Object(entry["object_id"], context))
        finally:
            await context.release()

    with existing_database(settings) as dsn:
        return asyncio.run(use(dsn))


def _ready_entry(settings: "Settings", table: str) -> dict[str, Any]:
    entry = _entry(settings, table)
    if entry["state"] != DataObjectState.READY:
        raise Conflict(f"table {entry['object_id']} is {entry['state']}; only ready tables have rows to read")
    return entry


def _number(value: int | None) -> str:
    return "" if value is None else f"{value:,}"
