"""From what a user names to a graph that can be run: handlers, queues, files, defaults."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dagmaster.authoring.catalog import Catalog
from dagmaster.authoring.yaml import QueueRules, load_workflow
from dagmaster.cli.failures import tell
from dagmaster.errors import UnknownWorkflow
from dagmaster.handlers import Registry, load_handlers, registry
from dagmaster.model.problems import InvalidWorkflow, Problem
from dagmaster.model.workflow import Workflow
from dagmaster.settings import Settings

DEFAULT_QUEUE = "default"
SUFFIXES = (".yaml", ".yml")

log = logging.getLogger(__name__)


def load_registry(settings: Settings, more: Sequence[str] | None) -> Registry:
    load_handlers([*settings.handlers, *(more or ())])
    return registry


def default_queue(settings: Settings) -> str | None:
    """Where tasks go that name no queue. Nobody chooses it for a server that others use (ruling C-16)."""
    return settings.worker_queue if settings.database_dsn() else own_queue(settings)


def own_queue(settings: Settings) -> str:
    """The same for all that runs in one process or on one data folder: there it need not be set."""
    if settings.worker_queue:
        return settings.worker_queue
    log.info("no default queue is set (DAGMASTER_WORKER_QUEUE): tasks that name none go to %r", DEFAULT_QUEUE)
    return DEFAULT_QUEUE


def find_workflow(name: str, settings: Settings, rules: QueueRules) -> Workflow:
    """The workflow of a file, or of an id in the folder of workflows."""
    path = Path(name)
    if path.suffix in SUFFIXES or "/" in name:
        return load_workflow(path, queues=rules)
    if not settings.workflows_dir.is_dir():
        raise UnknownWorkflow(
            f"{name!r} is not a workflow file, and there is no folder {str(settings.workflows_dir)!r} to look for "
            "a workflow of this id; set DAGMASTER_WORKFLOWS_DIR"
        )
    catalog = Catalog(settings.workflows_dir, queues=rules)
    if name not in catalog.workflows:
        for file, problems in catalog.problems.items():
            if Path(file).stem == name:
                raise InvalidWorkflow(problems)
    return catalog.get(name)


def load_catalog(settings: Settings, rules: QueueRules) -> Catalog:
    """Broken files are told, and do not keep the others from being used."""
    folder = settings.workflows_dir if settings.workflows_dir.is_dir() else None
    catalog = Catalog(folder, queues=rules)
    for problems in catalog.problems.values():
        tell(*map(str, problems))
    return catalog


def problem_record(problem: Problem) -> dict[str, Any]:
    return {
        "file": problem.file,
        "line": problem.line,
        "column": problem.column,
        "severity": problem.severity,
        "message": problem.message,
    }
