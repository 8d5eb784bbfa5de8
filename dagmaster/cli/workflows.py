"""Workflow files: which there are, and what is wrong with them."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from dagmaster.cli.backend import backend_of
from dagmaster.cli.columns import Listing
from dagmaster.cli.failures import WRONG_USE, tell
from dagmaster.cli.options import Handlers, JsonOutput, begin
from dagmaster.cli.output import console, print_json

app = typer.Typer(add_completion=False)


@app.command()
def workflows(ctx: typer.Context, handlers: Handlers = None, as_json: JsonOutput = False) -> None:
    """List the workflows of the folder.

    With --url those of the server.

    \b
    For example:
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
        listing.add(
            escape(line.workflow_id) + ("" if line.is_active else " [dim](not active)[/]"),
            str(line.version),
            str(line.nodes),
            escape(", ".join(line.inputs)),
            note=escape(line.source),
        )
    listing.print(console())


@app.command()
def validate(
    ctx: typer.Context,
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="PATH...", help="Workflow files, Python files, or folders of workflow files."),
    ],
    handlers: Handlers = None,
    contracts: Annotated[
        bool | None,
        typer.Option(
            "--contracts/--no-contracts",
            help="Check against what workers have registered; by default where a database is at hand.",
            show_default=False,
        ),
    ] = None,
    as_json: JsonOutput = False,
) -> None:
    """Check workflow files and show all their problems.

    With --handlers it is also checked that the handlers exist, and that the
    parameters fit them. With a database (of the settings, or of a running
    `dagmaster dev`) the same is checked against the handlers that workers have
    registered there. The exit code is 2 if a file has an error.

    \b
    For example:
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
    raise typer.Exit(WRONG_USE if has_errors else 0)
