"""Workflow files: which there are, and what is wrong with them."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from dagmaster.authoring.yaml import QueueRules, read_file
from dagmaster.cli.definitions import SUFFIXES, default_queue, load_catalog, load_registry, own_queue
from dagmaster.cli.failures import WRONG_USE, tell
from dagmaster.cli.options import Handlers, JsonOutput, begin
from dagmaster.cli.output import console, print_json, table
from dagmaster.errors import NotFound
from dagmaster.model.problems import Problem
from dagmaster.model.workflow import Workflow

app = typer.Typer(add_completion=False)


@app.command()
def workflows(ctx: typer.Context, handlers: Handlers = None, as_json: JsonOutput = False) -> None:
    """List the workflows of the folder.

    \b
    For example:
      dagmaster workflows
      DAGMASTER_WORKFLOWS_DIR=examples dagmaster workflows --json
    """
    settings = begin(ctx)
    registry = load_registry(settings, handlers)
    known = registry.queues() if handlers or settings.handlers else None
    catalog = load_catalog(settings, QueueRules(known, own_queue(settings)))
    found = [catalog.workflows[name] for name in sorted(catalog.workflows)]
    if as_json:
        problems = [_as_json(problem) for problems in catalog.problems.values() for problem in problems]
        print_json({"workflows": [_summary(workflow, catalog.sources) for workflow in found], "problems": problems})
        return
    if not found:
        tell(f"no workflows in {settings.workflows_dir}")
        return
    listing = table("WORKFLOW", "VERSION", "NODES", "INPUTS", "FILE")
    for workflow in found:
        listing.add_row(
            escape(workflow.workflow_id) + ("" if workflow.is_active else " [dim](not active)[/]"),
            str(workflow.version),
            str(len(workflow.nodes)),
            escape(", ".join(_inputs(workflow))),
            escape(catalog.sources[workflow.workflow_id]),
        )
    console().print(listing)


def _inputs(workflow: Workflow) -> Iterator[str]:
    for name, spec in workflow.inputs.items():
        yield name if spec.required else f"{name}?"


def _summary(workflow: Workflow, sources: Any) -> dict[str, Any]:
    return {
        "workflow_id": workflow.workflow_id,
        "name": workflow.name,
        "version": workflow.version,
        "description": workflow.description,
        "is_active": workflow.is_active,
        "nodes": len(workflow.nodes),
        "inputs": {name: spec.model_dump(mode="json") for name, spec in workflow.inputs.items()},
        "file": sources[workflow.workflow_id],
    }


@app.command()
def validate(
    ctx: typer.Context,
    paths: Annotated[list[Path], typer.Argument(metavar="PATH...", help="Workflow files, or folders of them.")],
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
    """
    settings = begin(ctx)
    registry = load_registry(settings, handlers)
    known = registry.queues() if handlers or settings.handlers else None
    rules = QueueRules(known, default_queue(settings))
    checked = {path: read_file(path, queues=rules)[1] for path in _files(paths)}
    has_errors = any(problem.is_error for problems in checked.values() for problem in problems)
    if as_json:
        print_json({"ok": not has_errors, "files": [_file(path, problems) for path, problems in checked.items()]})
    else:
        for path, problems in checked.items():
            for line in [*map(str, problems)] or [f"{path}: ok"]:
                typer.echo(line)
    raise typer.Exit(WRONG_USE if has_errors else 0)


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
    listed = [_as_json(problem) for problem in problems]
    return {"file": str(path), "ok": not any(p["severity"] == "error" for p in listed), "problems": listed}


def _as_json(problem: Problem) -> dict[str, Any]:
    return {
        "file": problem.file,
        "line": problem.line,
        "column": problem.column,
        "severity": problem.severity,
        "message": problem.message,
    }
