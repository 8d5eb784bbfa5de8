"""Load the handlers and workflows that a user names."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dagmaster.authoring.catalog import Catalog
from dagmaster.authoring.preparation import Find
from dagmaster.authoring.yaml import QueueRules, load_workflow
from dagmaster.cli.backend import WorkflowLine
from dagmaster.cli.failures import tell
from dagmaster.errors import UnknownWorkflow
from dagmaster.handlers import Registry, load_handlers, registry
from dagmaster.model.contracts import Contracts
from dagmaster.model.problems import InvalidWorkflow, Problem
from dagmaster.model.workflow import Workflow
from dagmaster.python.catalogue import find_function, join, module_in
from dagmaster.python.entrypoints import allow_modules
from dagmaster.service.definitions import Definitions
from dagmaster.settings import Settings

SUFFIXES = (".yaml", ".yml")


def load_registry(settings: Settings, more: Sequence[str] | None) -> Registry:
    load_handlers([*settings.handlers, *(more or ())])
    allow_modules(settings.task_modules)
    return registry


def find_workflow(name: str, settings: Settings, rules: QueueRules) -> Workflow:
    """The workflow in a file, in a loaded module, or with this id in the workflows folder."""
    path = Path(name)
    if (function := find_function(name)) is not None:
        return Catalog(queues=rules).register(function.workflow)
    if path.suffix in SUFFIXES or "/" in name:
        return load_workflow(path, queues=rules)
    catalog = Catalog(settings.workflows_dir, queues=rules, must_exist=False)
    if name not in catalog.workflows:
        for file, problems in catalog.problems.items():
            if Path(file).stem == name:
                raise InvalidWorkflow(problems)
        join(catalog)  # The error lists the workflows in Python too.
        if not catalog.workflows and not settings.workflows_dir.is_dir():
            raise UnknownWorkflow(
                f"{name!r} is not a workflow file, and the workflows folder {str(settings.workflows_dir)!r} does not "
                "exist; set DAGMASTER_WORKFLOWS_DIR, or load a Python workflow with --handlers FILE.py"
            )
    workflow = catalog.get(name)
    problems = catalog.problems.get(catalog.sources[name], ())
    if any(problem.is_error for problem in problems):
        raise InvalidWorkflow(problems)
    return workflow


def find_called(name: str, settings: Settings, rules: QueueRules) -> Find:
    """Finds the workflows that this one calls: next to its file first."""
    folder = Path(name).parent if Path(name).suffix in SUFFIXES else None
    beside: Mapping[str, Workflow] = Catalog(folder, queues=rules).workflows if folder is not None else {}
    return lambda called: beside[called] if called in beside else find_workflow(called, settings, rules)


def named_definitions(name: str, settings: Settings, rules: QueueRules, contracts: Contracts) -> Definitions:
    """The definitions for the submission of this workflow."""
    return Definitions(
        settings,
        contracts,
        lambda workflow: find_workflow(workflow, settings, rules),
        find_called(name, settings, rules),
    )


def load_catalog(settings: Settings, rules: QueueRules) -> Catalog:
    """Invalid files are reported; the others are loaded."""
    catalog = Catalog(settings.workflows_dir, queues=rules, must_exist=False)
    tell(*map(str, join(catalog)))
    for problems in catalog.problems.values():
        tell(*map(str, problems))
    return catalog


def with_module_of(workflow: str, handlers: Sequence[str] | None) -> list[str]:
    """The modules to load, including that of a workflow named as `FILE.py:function`."""
    module = module_in(workflow)
    return [*(handlers or ()), *([module] if module else ())]


def problem_record(problem: Problem) -> dict[str, Any]:
    return {name: getattr(problem, name) for name in ("file", "line", "column", "severity", "message")}


def workflow_line(workflow: Workflow, source: str) -> WorkflowLine:
    record = {
        "workflow_id": workflow.workflow_id,
        "name": workflow.name,
        "version": workflow.version,
        "description": workflow.description,
        "is_active": workflow.is_active,
        "nodes": len(workflow.nodes),
        "inputs": {name: spec.model_dump(mode="json") for name, spec in workflow.inputs.items()},
        "file": source,
    }
    return WorkflowLine(record, [name for name, spec in workflow.inputs.items() if spec.required])
