"""The problems of workflow files, for `dagmaster validate`."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from dagmaster.authoring.catalog import Catalog
from dagmaster.authoring.implicit import default_queue
from dagmaster.authoring.yaml import QueueRules, read_file
from dagmaster.cli.backend import backend_of
from dagmaster.cli.definitions import SUFFIXES, load_registry, problem_record
from dagmaster.cli.failures import tell
from dagmaster.errors import DagmasterError, Misconfigured, NotFound
from dagmaster.handlers import Registry
from dagmaster.model.contracts import Contracts, by_spelling, queues_by_handler
from dagmaster.model.problems import Problem
from dagmaster.python.catalogue import SUFFIX as PYTHON
from dagmaster.python.catalogue import join
from dagmaster.settings import Settings


def check_files(
    ctx: typer.Context, settings: Settings, paths: Sequence[Path], handlers: Sequence[str], contracts: bool | None
) -> Mapping[Path, Sequence[Problem]]:
    """The problems of each file; `contracts` is whether to check against the registered contracts."""
    modules = [str(path) for path in paths if path.suffix == PYTHON]
    registry = load_registry(settings, [*handlers, *modules])
    registered = _registered(ctx, settings, contracts)
    rules = _rules(settings, registry, registered, is_loaded=bool(handlers or settings.handlers))
    return {path: _problems(path, rules) for path in _files(paths)}


def _registered(ctx: typer.Context, settings: Settings, is_requested: bool | None) -> Contracts | None:
    """None if there is no database: this check does not start one. Errors are raised only if it was requested."""
    is_configured = settings.url is not None or settings.database_dsn() is not None
    if is_requested is False or not (is_requested or is_configured or settings.data_dir.exists()):
        return None
    # psycopg is imported only where there may be a database.
    from dagmaster.store.embedded import EmbeddedServer
    from dagmaster.store.handlers import contract_of

    try:
        if is_configured or EmbeddedServer.is_running(settings.data_dir):
            return by_spelling(map(contract_of, backend_of(ctx, settings).handlers()))
        if is_requested:
            raise Misconfigured(
                "there are no registered contracts to check against: no database is configured, and none is running "
                f"in {settings.data_dir}; name one with --database-url or --url, or start `dagmaster dev`"
            )
    except DagmasterError as error:
        if is_requested:
            raise
        tell(f"handler contracts were not checked: {error}")
    return None


def _rules(settings: Settings, registry: Registry, registered: Contracts | None, *, is_loaded: bool) -> QueueRules:
    """Handlers loaded here take precedence: the user named their code."""
    own = registry.own_contracts()
    contracts = {**(registered or {}), **own}
    queues = queues_by_handler(contracts) if is_loaded or registered is not None else None
    is_open = registered is not None and not is_loaded
    return QueueRules(queues, default_queue(settings), is_open=is_open, contracts=contracts)


def _problems(path: Path, rules: QueueRules) -> Sequence[Problem]:
    if path.suffix == PYTHON:
        return join(Catalog(queues=rules), str(path))
    return read_file(path, queues=rules)[1]


def _files(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            files = sorted(file for file in path.rglob("*") if file.suffix in SUFFIXES and file.is_file())
            if not files:
                raise NotFound(f"no workflow files in {str(path)!r}")
            yield from files
        elif path.is_file():
            yield path
        else:
            raise NotFound(f"there is no file {str(path)!r}")


def file_record(path: Path, problems: Iterable[Problem]) -> dict[str, Any]:
    listed = [problem_record(problem) for problem in problems]
    return {"file": str(path), "ok": not any(p["severity"] == "error" for p in listed), "problems": listed}
