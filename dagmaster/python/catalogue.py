"""The workflows of Python modules: found by module and function, or added to the catalogue of files."""

from dataclasses import replace
from pathlib import Path

from dagmaster.authoring.catalog import Catalog
from dagmaster.errors import Invalid, Misconfigured, UnknownWorkflow
from dagmaster.model.problems import InvalidWorkflow, Problem
from dagmaster.python.workflows import AnyWorkflow, defined

SUFFIX = ".py"


def module_in(name: str) -> str | None:
    """The module or FILE.py in `FILE.py`, `FILE.py:function` or `module:function`; None for other names."""
    if name.endswith(SUFFIX):
        return name
    module, mark, function = name.rpartition(":")
    is_function = module.endswith(SUFFIX) or function.isidentifier()
    return module if mark and module and is_function else None


def find_function(name: str) -> AnyWorkflow | None:
    """The workflow function of this name in a loaded module; None if it may be a YAML workflow."""
    return find_python_workflow(name) if module_in(name) is not None else defined.get(name)


def find_python_workflow(name: str) -> AnyWorkflow:
    """The workflow function of this name in a loaded module. Raises UnknownWorkflow if there is none, or several."""
    module = module_in(name) or name
    workflows = _workflows_in(module)
    function = name.removeprefix(module).removeprefix(":")
    matches = [workflow for workflow in workflows if function in ("", workflow.fn.__name__, workflow.workflow_id)]
    if len(matches) == 1:
        return matches[0]
    names = ", ".join(f"{module}:{workflow.fn.__name__}" for workflow in workflows)
    raise UnknownWorkflow(f"name a workflow of {module!r}: it defines {names}")


def join(catalog: Catalog, module: str | None = None) -> list[Problem]:
    """Add the workflows of the loaded modules, or of one; returns the problems of those that cannot be added."""
    chosen = list(defined.values()) if module is None else _workflows_in(module)
    return [problem for workflow in chosen for problem in _register(catalog, workflow)]


def _register(catalog: Catalog, function: AnyWorkflow) -> list[Problem]:
    code = function.fn.__code__
    try:
        catalog.register(function.workflow)
    except InvalidWorkflow as error:
        return [replace(fault, file=code.co_filename, line=code.co_firstlineno) for fault in error.problems]
    except (Invalid, Misconfigured, TypeError) as error:  # Raised by the function when its graph is built.
        return [Problem(str(error), (), code.co_filename, code.co_firstlineno)]
    return []


def _workflows_in(module: str) -> list[AnyWorkflow]:
    if module.endswith(SUFFIX):
        path = Path(module).expanduser().resolve()
        workflows = [flow for flow in defined.values() if Path(flow.fn.__code__.co_filename).resolve() == path]
    else:
        workflows = [workflow for workflow in defined.values() if workflow.fn.__module__ == module]
    if not workflows:
        raise UnknownWorkflow(f"{module!r} defines no workflow; is @workflow missing?")
    return workflows
