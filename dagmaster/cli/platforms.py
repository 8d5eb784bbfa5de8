"""Platforms: list and add them."""

from typing import Annotated

import typer
from rich.markup import escape

from dagmaster.cli.backend import backend_of
from dagmaster.cli.columns import Listing
from dagmaster.cli.options import Actor, JsonOutput, begin
from dagmaster.cli.output import as_records, console, print_json, print_result
from dagmaster.model.asset import Platform

app = typer.Typer(name="platforms", add_completion=False)


@app.callback(invoke_without_command=True)
def platforms(ctx: typer.Context, as_json: JsonOutput = False) -> None:
    """List and add the platforms whose assets are processed.

    \b
    Examples:
      dagmaster platforms
      dagmaster platforms add ckan --name CKAN --ref package_id
    """
    if ctx.invoked_subcommand is None:
        list_all(ctx, as_json)


@app.command("list")
def list_all(ctx: typer.Context, as_json: JsonOutput = False) -> None:
    """List the platforms and the references that identify their assets.

    \b
    Examples:
      dagmaster platforms list --json
    """
    rows = backend_of(ctx, begin(ctx)).call_assets(lambda service: service.platforms())
    if as_json:
        print_json(as_records(rows))
        return
    listing = Listing(("PLATFORM", "NAME", "STATE", "REQUIRED REFS", "OPTIONAL REFS", "WORKFLOWS"), folds=("NAME",))
    for row in rows:
        allowed = row["allowed_workflows"]
        listing.add(
            escape(row["platform_id"]),
            escape(row["display_name"]),
            "active" if row["is_active"] else "inactive",
            escape(", ".join(row["required_refs"])),
            escape(", ".join(row["optional_refs"])),
            "all" if allowed is None else escape(", ".join(allowed)) or "none",
        )
    listing.print(console())


@app.command()
def add(
    ctx: typer.Context,
    platform_id: Annotated[str, typer.Argument(metavar="PLATFORM", help="Id: lower-case letters, digits, '_', '-'.")],
    name: Annotated[str, typer.Option(metavar="TEXT", help="Display name.")],
    ref: Annotated[list[str], typer.Option(metavar="NAME", help="Reference that identifies an asset; repeatable.")],
    optional_ref: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Further reference to store; repeatable.")
    ] = None,
    workflow: Annotated[
        list[str] | None,
        typer.Option(metavar="WORKFLOW", help="Workflow that its partners may submit; repeatable; default: all."),
    ] = None,
    actor: Actor = None,
    as_json: JsonOutput = False,
) -> None:
    """Add a platform.

    The references that identify its assets cannot be changed later.

    \b
    Examples:
      dagmaster platforms add ckan --name CKAN --ref package_id --ref resource_id
    """
    allowed = tuple(workflow) if workflow else None
    platform = Platform(platform_id, name, tuple(ref), tuple(optional_ref or ()), allowed_workflows=allowed)
    backend = backend_of(ctx, begin(ctx))
    row = backend.call_assets(lambda service: service.add_platform(platform), actor=actor)
    print_result(row, f"Added platform {platform_id}", as_json=as_json)
