"""The database's schema: to the version of this program, or back."""

from contextlib import AbstractContextManager
from typing import Annotated

import typer

from dagmaster.cli.columns import Listing
from dagmaster.cli.options import JsonOutput, begin
from dagmaster.cli.output import console, print_json

app = typer.Typer(name="migrate", add_completion=False)


def _database(ctx: typer.Context) -> AbstractContextManager[str]:
    from dagmaster.cli.sessions import check_named
    from dagmaster.store.databases import database

    settings = begin(ctx)
    check_named(settings)
    return database(settings, migrated=False)


@app.callback(invoke_without_command=True)
def root(ctx: typer.Context) -> None:
    """Bring the database's schema to the version of this program, or back.

    Without a command it is upgraded to the newest revision.

    \b
    For example:
      dagmaster migrate
      python -m dagmaster migrate current
    """
    if ctx.invoked_subcommand is None:
        upgrade(ctx)


@app.command()
def upgrade(ctx: typer.Context, revision: Annotated[str, typer.Argument(metavar="REVISION")] = "head") -> None:
    """Upgrade to a revision, by default to the newest.

    \b
    For example:
      dagmaster migrate upgrade
    """
    from dagmaster.store import migrate

    with _database(ctx) as dsn:
        migrate.upgrade(dsn, revision)
        typer.echo(f"the schema is at revision {migrate.current(dsn)}")


@app.command()
def downgrade(
    ctx: typer.Context,
    revision: Annotated[str, typer.Argument(metavar="REVISION", help="`base` removes all tables and their data.")],
) -> None:
    """Go back to a revision. What it does not know is lost.

    \b
    For example:
      dagmaster migrate downgrade 0001
    """
    from dagmaster.store import migrate

    with _database(ctx) as dsn:
        migrate.downgrade(dsn, revision)
        typer.echo(f"the schema is at revision {migrate.current(dsn) or 'base'}")


@app.command("current")
def show_current(ctx: typer.Context, as_json: JsonOutput = False) -> None:
    """Show the revision of the database.

    \b
    For example:
      dagmaster migrate current
    """
    from dagmaster.store import migrate

    with _database(ctx) as dsn:
        current, head = migrate.current(dsn), migrate.head()
    if as_json:
        print_json({"current": current, "head": head, "is_current": current == head})
        return
    newest = " (the newest)" if current == head else f"; the newest is {head}: run `dagmaster migrate`"
    typer.echo(f"{current or 'no schema'}{newest}")


@app.command()
def history(ctx: typer.Context, as_json: JsonOutput = False) -> None:
    """List all revisions, oldest first.

    \b
    For example:
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
