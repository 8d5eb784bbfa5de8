"""Migrate the database schema."""

from contextlib import AbstractContextManager
from typing import Annotated

import typer

from dagmaster.cli.columns import Listing
from dagmaster.cli.options import JsonOutput, begin
from dagmaster.cli.output import console, print_json, print_result

app = typer.Typer(name="migrate", add_completion=False)


def _database(ctx: typer.Context) -> AbstractContextManager[str]:
    from dagmaster.cli.sessions import check_named
    from dagmaster.store.databases import database

    settings = begin(ctx)
    check_named(settings)
    return database(settings, migrated=False)


@app.callback(invoke_without_command=True)
def root(ctx: typer.Context) -> None:
    """Upgrade or downgrade the database schema.

    Without a command, upgrades to the latest revision.

    \b
    Examples:
      dagmaster migrate
      python -m dagmaster migrate current
    """
    if ctx.invoked_subcommand is None:
        upgrade(ctx)


@app.command()
def upgrade(
    ctx: typer.Context, revision: Annotated[str, typer.Argument(metavar="REVISION", help="Target revision.")] = "head"
) -> None:
    """Upgrade to a revision; default: the latest.

    \b
    Examples:
      dagmaster migrate upgrade
    """
    from dagmaster.store import migrate

    with _database(ctx) as dsn:
        migrate.upgrade(dsn, revision)
        typer.echo(f"schema revision: {migrate.current(dsn)}")


@app.command()
def downgrade(
    ctx: typer.Context,
    revision: Annotated[
        str, typer.Argument(metavar="REVISION", help="Target revision; `base` removes all tables and their data.")
    ],
) -> None:
    """Downgrade to a revision. Data that it cannot store is lost.

    \b
    Examples:
      dagmaster migrate downgrade 0001
    """
    from dagmaster.store import migrate

    with _database(ctx) as dsn:
        migrate.downgrade(dsn, revision)
        typer.echo(f"schema revision: {migrate.current(dsn) or 'base'}")


@app.command("current")
def show_current(ctx: typer.Context, as_json: JsonOutput = False) -> None:
    """Show the current revision of the database.

    \b
    Examples:
      dagmaster migrate current
    """
    from dagmaster.store import migrate

    with _database(ctx) as dsn:
        current, head = migrate.current(dsn), migrate.head()
    newest = " (latest)" if current == head else f"; latest: {head}; run `dagmaster migrate`"
    record = {"current": current, "head": head, "is_current": current == head}
    print_result(record, f"{current or 'no schema'}{newest}", as_json=as_json)


@app.command()
def history(ctx: typer.Context, as_json: JsonOutput = False) -> None:
    """List all revisions, oldest first.

    \b
    Examples:
      dagmaster migrate history
    """
    from dagmaster.store import migrate

    with _database(ctx) as dsn:
        revisions = migrate.history(dsn)
    if as_json:
        print_json(revisions)
        return
    listing = Listing(("", "REVISION"), note="TITLE")
    for entry in revisions:
        listing.add("→" if entry.is_current else "", entry.revision, note=entry.title)
    listing.print(console())
