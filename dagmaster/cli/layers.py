"""Layers: list, publish and unpublish them."""

from typing import Annotated

import typer
from rich.markup import escape

from dagmaster.cli.backend import Row, backend_of
from dagmaster.cli.columns import Listing
from dagmaster.cli.failures import JOB_FAILED, tell
from dagmaster.cli.options import Actor, AssetId, JsonOutput, begin
from dagmaster.cli.output import as_record, at_local_time, console, count_of, print_json, print_or_tell
from dagmaster.errors import Invalid

app = typer.Typer(name="layers", add_completion=False)

Limit = Annotated[int, typer.Option("--limit", "-n", help="Maximum number of layers.", min=1)]


@app.callback(invoke_without_command=True)
def layers(ctx: typer.Context) -> None:
    """List, publish and unpublish the layers of assets.

    \b
    Examples:
      dagmaster layers
      dagmaster layers publish a9234e9e7b1ae7c5151568522b54db33
    """
    if ctx.invoked_subcommand is None:
        list_all(ctx)


@app.command("list")
def list_all(ctx: typer.Context, limit: Limit = 50, as_json: JsonOutput = False) -> None:
    """List the assets that have layer metadata.

    \b
    Examples:
      dagmaster layers list --json
    """
    rows = backend_of(ctx, begin(ctx)).call_assets(lambda service: service.layers(limit=limit))
    if print_or_tell(rows, "no layers; describe one with POST /api/v1/domain/metadata/", as_json=as_json):
        return
    listing = Listing(("ASSET", "NAME", "TYPE", "PLATFORM", "PUBLISHED", "EXTERNALLY"), folds=("NAME",), fixed=2)
    for row in rows:
        listing.add(
            escape(row["asset_id"]),
            escape(row["display_name"]),
            row["data_type"],
            escape(row["platform_id"]),
            at_local_time(row["published_at"]) or "no",
            at_local_time(row["published_externally_at"]) or "no",
        )
    listing.print(console())


@app.command()
def publish(
    ctx: typer.Context,
    asset_id: Annotated[str | None, typer.Argument(metavar="[ASSET]", help="Asset id.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Publish the layers of all assets.")] = False,
    actor: Actor = None,
    as_json: JsonOutput = False,
) -> None:
    """Write a layer to the catalogue and to its STAC collection.

    The asset needs an approved version. Exits with code 1 if a projection
    failed.

    \b
    Examples:
      dagmaster layers publish a9234e9e7b1ae7c5151568522b54db33
      dagmaster layers publish --all
    """
    if (asset_id is None) is not everything:
        raise Invalid("name an asset, or publish the layers of all with --all")
    backend = backend_of(ctx, begin(ctx))
    if asset_id is not None:
        result = backend.call_assets(lambda service: service.publish_layer(asset_id), actor=actor)
        _show(result, f"Published the layer of asset {asset_id}", as_json=as_json)
        return
    report = backend.call_assets(lambda service: service.publish_layers(), actor=actor)
    if as_json:
        print_json(as_record(report))
    else:
        typer.echo(
            f"{count_of(report['changed'], 'layer')} published, {report['unchanged']:,} unchanged, "
            f"{report['skipped']:,} without an approved version, {report['failed']:,} failed"
        )
        tell(*(f"error: asset {failure['asset_id']}: {failure['error']}" for failure in report["failures"]))
    if report["failed"]:
        raise typer.Exit(JOB_FAILED)


@app.command()
def unpublish(ctx: typer.Context, asset_id: AssetId, actor: Actor = None, as_json: JsonOutput = False) -> None:
    """Remove a layer from the catalogues and from its STAC collection.

    Its metadata is kept. Exits with code 1 if a projection could not be removed.

    \b
    Examples:
      dagmaster layers unpublish a9234e9e7b1ae7c5151568522b54db33
    """
    backend = backend_of(ctx, begin(ctx))
    result = backend.call_assets(lambda service: service.unpublish_layer(asset_id), actor=actor)
    _show(result, f"Unpublished the layer of asset {asset_id}", as_json=as_json)


def _show(result: Row, done: str, *, as_json: bool) -> None:
    if as_json:
        print_json(as_record(result))
    else:
        if result["is_complete"]:
            typer.echo(done)
        for projection in result["projections"]:
            target = f" ({projection['target']})" if projection["target"] else ""
            typer.echo(f"  {projection['name']}: {projection['outcome'].replace('_', ' ')}{target}")
        failed = [projection for projection in result["projections"] if projection["error"] is not None]
        tell(*(f"error: {projection['name']}: {projection['error']}" for projection in failed))
    if not result["is_complete"]:
        raise typer.Exit(JOB_FAILED)
