"""SQL on the database: psql, or one statement if psql is not installed."""

import os
import shutil
import subprocess
from typing import Annotated

import typer
from rich.markup import escape

from dagmaster.cli.columns import Listing
from dagmaster.cli.options import begin
from dagmaster.cli.output import console
from dagmaster.errors import Invalid, Misconfigured

# Output that fits on the screen is printed without a pager, as git does.
SHORT_PAGER = "FRX"

app = typer.Typer(add_completion=False)


@app.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
def psql(
    ctx: typer.Context,
    command: Annotated[
        str | None, typer.Option("-c", "--command", metavar="SQL", help="Run this statement and exit.")
    ] = None,
) -> None:
    """Open psql on the database, embedded or not.

    dagmaster's tables need no schema prefix. Other options are passed to psql.

    \b
    Examples:
      dagmaster psql
      dagmaster psql -c "SELECT status, count(*) FROM dag_jobs GROUP BY 1"
    """
    from dagmaster.cli.sessions import existing_database
    from dagmaster.store.embedded import find_program

    arguments = [*(["-c", command] if command is not None else []), *ctx.args]
    with existing_database(begin(ctx)) as dsn:
        program = find_program("psql") or shutil.which("psql")
        if program is not None:
            options = f"{search_path()} {os.environ.get('PGOPTIONS', '')}"
            env = {"LESS": SHORT_PAGER, **os.environ, "PGOPTIONS": options}
            called = [str(program), "-d", dsn, "-P", "expanded=auto", *arguments]
            raise typer.Exit(subprocess.run(called, env=env, check=False).returncode)
        if command is None:
            raise Misconfigured("psql is not installed; install it, or run one statement with -c")
        run_statement(dsn, command)


def run_statement(dsn: str, statement: str) -> None:
    """Print the rows or the status of a statement."""
    import psycopg

    try:
        with psycopg.connect(dsn, options=search_path()) as conn:
            cursor = conn.execute(statement.encode())  # bytes: a string would be parsed for placeholders
            rows = cursor.fetchall() if cursor.description else []
            titles = [column.name for column in cursor.description or ()]
    except psycopg.Error as error:
        raise Invalid(str(error).strip()) from None
    if not titles:
        typer.echo(cursor.statusmessage or "")
        return
    listing = Listing(titles, fixed=1)
    for row in rows:
        listing.add(*(escape("" if value is None else str(value)) for value in row))
    listing.print(console())


def search_path() -> str:
    from dagmaster.store.columns import SCHEMA

    return f"-c search_path={SCHEMA},public"
