"""Workflow files: which there are, and what is wrong with them."""

from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from dagmaster.authoring.catalog import Catalog
from dagmaster.authoring.implicit import default_queue
from dagmaster.authoring.yaml import QueueRules, read_file
from dagmaster.cli.backend import backend_of
from dagmaster.cli.columns import Listing
from dagmaster.cli.definitions import SUFFIXES, load_registry, problem_record
from dagmaster.cli.failures import WRONG_USE, tell
from dagmaster.cli.options import Handlers, JsonOutput, begin
from dagmaster.cli.output import console, print_json
from dagmaster.errors import DagmasterError, NotFound
from dagmaster.handlers import Registry
from dagmaster.model.contracts import Contracts, queues_by_handler
from dagmaster.model.problems import Problem
from dagmaster.python.catalogue import SUFFIX as PYTHON
from dagmaster.python.catalogue import join
from dagmaster.settings import Settings

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
    settings = begin(ctx)
    modules = [str(path) for path in paths if path.suffix == PYTHON]
    registry = load_registry(settings, [*(handlers or ()), *modules])
    registered = _registered(ctx, settings, contracts)
    rules = _rules(settings, registry, registered, is_loaded=bool(handlers or settings.handlers))
    checked = {path: _problems(path, rules) for path in _files(paths)}
    has_errors = any(problem.is_error for problems in checked.values() for problem in problems)
    if as_json:
        print_json({"ok": not has_errors, "files": [_file(path, problems) for path, problems in checked.items()]})
    else:
        for path, problems in checked.items():
            for line in [*map(str, problems)] or [f"{path}: ok"]:
                typer.echo(line)
    raise typer.Exit(WRONG_USE if has_errors else 0)


def _registered(ctx: typer.Context, settings: Settings, wanted: bool | None) -> Contracts | None:
    """Raise what is wrong with the database only where it was asked for."""
    is_configured = settings.url is not None or settings.database_dsn() is not None
    if wanted is False or not (wanted or is_configured or settings.data_dir.exists()):
        return None
    # psycopg is imported only where there may be a database.
    contracts = import_module("dagmaster.cli.contracts")
    try:
        found: Contracts | None = contracts.find_registered(ctx, settings, must_exist=wanted is True)
    except DagmasterError as error:
        if wanted:
            raise
        tell(f"the contracts of handlers were not checked: {error}")
        return None
    return found


def _rules(settings: Settings, registry: Registry, registered: Contracts | None, *, is_loaded: bool) -> QueueRules:
    """What is loaded here counts first: it is the code that was named."""
    own = registry.own_contracts()
    known = {**(registered or {}), **own}
    queues = queues_by_handler(known) if is_loaded or registered is not None else None
    is_open = registered is not None and not is_loaded
    return QueueRules(queues, default_queue(settings), is_open=is_open, contracts=known)


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
