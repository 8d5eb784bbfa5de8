"""Workflow files: list them and check them."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from dagmaster.cli.backend import backend_of
from dagmaster.cli.columns import Listing
from dagmaster.cli.failures import USAGE_ERROR, tell
from dagmaster.cli.options import Handlers, JsonOutput, begin
from dagmaster.cli.output import console, print_json

app = typer.Typer(add_completion=False)


@app.command()
def workflows(ctx: typer.Context, handlers: Handlers = None, as_json: JsonOutput = False) -> None:
    """List the available workflows.

    Lists the workflows folder, or with --url the workflows of the server.

    \b
    Examples:
      dagmaster workflows
      DAGMASTER_WORKFLOWS_DIR=examples dagmaster workflows --json
    """
    settings = begin(ctx)
    lines, problems = backend_of(ctx, settings).workflows(handlers or ())
    if as_json:
        print_json({"workflows": [line.record for line in lines], "problems": problems})
        return
    if not lines:
        tell(f"no workflows in {settings.url or settings.workflows_dir}")
        return
    listing = Listing(("WORKFLOW", "VERSION", "NODES", "INPUTS"), note="FILE", folds=("WORKFLOW", "INPUTS"))
    for line in lines:
        workflow = line.record
        listing.add(
            escape(workflow["workflow_id"]) + ("" if workflow["is_active"] else " [dim](not active)[/]"),
            str(workflow["version"]),
            str(workflow["nodes"]),
            escape(", ".join(name if name in line.required else f"{name}?" for name in workflow["inputs"])),
            note=escape(workflow["file"]),
        )
    listing.print(console())


@app.command()
def validate(
    ctx: typer.Context,
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="PATH", help="Workflow files, Python files, or folders of workflow files."),
    ],
    handlers: Handlers = None,
    contracts: Annotated[
        bool | None,
        typer.Option(
            "--contracts/--no-contracts",
            help="Check against the registered handlers; default: if a database is available.",
            show_default=False,
        ),
    ] = None,
    as_json: JsonOutput = False,
) -> None:
    """Check workflow files and report every problem.

    With --handlers, also checks that the handlers exist and accept the
    parameters. With a database (from the settings, or a running `dagmaster
    dev`), also checks against the handlers that workers have registered. The
    exit code is 2 if a file has an error.

    \b
    Examples:
      dagmaster validate workflows
      dagmaster validate my.yaml --handlers my_handlers.py
      dagmaster validate my_workflows.py
    """
    from dagmaster.cli.workflow_check import check_files, file_record

    checked = check_files(ctx, begin(ctx), paths, handlers or (), contracts)
    has_errors = any(problem.is_error for problems in checked.values() for problem in problems)
    if as_json:
        print_json({"ok": not has_errors, "files": [file_record(path, problems) for path, problems in checked.items()]})
    else:
        for path, problems in checked.items():
            for message in [*map(str, problems)] or [f"{path}: ok"]:
                typer.echo(message)
    raise typer.Exit(USAGE_ERROR if has_errors else 0)
