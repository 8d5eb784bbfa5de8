"""Workflow files: which there are, and what is wrong with them."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from dagmaster.authoring.catalog import Catalog
from dagmaster.authoring.implicit import default_queue
from dagmaster.authoring.yaml import QueueRules, read_file
from dagmaster.cli.backend import backend_of
from dagmaster.cli.definitions import SUFFIXES, load_registry, problem_record
from dagmaster.cli.failures import WRONG_USE, tell
from dagmaster.cli.listing import Listing
from dagmaster.cli.options import Handlers, JsonOutput, begin
from dagmaster.cli.output import console, print_json
from dagmaster.errors import NotFound
from dagmaster.model.problems import Problem
from dagmaster.python.catalogue import SUFFIX as PYTHON
from dagmaster.python.catalogue import join

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
    found, problems = backend_of(ctx, settings).workflows(handlers or ())
    if as_json:
        print_json({"workflows": [one.record for one in found], "problems": problems})
        return
    if not found:
        tell(f"no workflows in {settings.url or settings.workflows_dir}")
        return
    listing = Listing(("WORKFLOW", "VERSION", "NODES", "INPUTS"), note="FILE", folds=("WORKFLOW", "INPUTS"))
    for one in found:
        listing.add(
            escape(one.workflow_id) + ("" if one.is_active else " [dim](not active)[/]"),
            str(one.version),
            str(one.nodes),
            escape(", ".join(one.inputs)),
            note=escape(one.source),
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
    as_json: JsonOutput = False,
) -> None:
    """Check workflow files and show all their problems.

    With --handlers it is also checked that the handlers exist. The exit code is
    2 if a file has an error.

    \b
    For example:
      dagmaster validate workflows
      dagmaster validate my.yaml --handlers my_handlers.py
      dagmaster validate my_workflows.py
    """
    settings = begin(ctx)
    modules = [str(path) for path in paths if path.suffix == PYTHON]
    registry = load_registry(settings, [*(handlers or ()), *modules])
    known = registry.queues() if handlers or settings.handlers else None
    rules = QueueRules(known, default_queue(settings))
    checked = {path: _problems(path, rules) for path in _files(paths)}
    has_errors = any(problem.is_error for problems in checked.values() for problem in problems)
    if as_json:
        print_json({"ok": not has_errors, "files": [_file(path, problems) for path, problems in checked.items()]})
    else:
        for path, problems in checked.items():
            for line in [*map(str, problems)] or [f"{path}: ok"]:
                typer.echo(line)
    raise typer.Exit(WRONG_USE if has_errors else 0)


def _problems(path: Path, rules: QueueRules) -> Sequence[Problem]:
    if path.suffix == PYTHON:
        return join(Catalog(queues=rules), str(path))
    return read_file(path, queues=rules)[1]


def _files(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            found = sorted(one for one in path.rglob("*") if one.suffix in SUFFIXES and one.is_file())
            if not found:
                raise NotFound(f"there are no workflow files in {str(path)!r}")
            yield from found
        elif path.is_file():
            yield path
        else:
            raise NotFound(f"there is no file {str(path)!r}")


def _file(path: Path, problems: Iterable[Problem]) -> dict[str, Any]:
    listed = [problem_record(problem) for problem in problems]
    return {"file": str(path), "ok": not any(p["severity"] == "error" for p in listed), "problems": listed}
