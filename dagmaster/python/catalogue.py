"""The workflows of Python modules: found by the place where they are written, or joined to those of the files."""

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
    """The workflow function that is meant, of a module that is loaded already; None when a file in YAML may be."""
    return find_python_workflow(name) if module_in(name) is not None else defined.get(name)


def find_python_workflow(name: str) -> AnyWorkflow:
    """Of a module that is loaded already. Raises UnknownWorkflow when it is not there, or not the only one."""
    module = module_in(name) or name
    there = _workflows_in(module)
    wanted = name.removeprefix(module).removeprefix(":")
    found = [one for one in there if wanted in ("", one.fn.__name__, one.workflow_id)]
    if len(found) == 1:
        return found[0]
    if not there:
        raise UnknownWorkflow(f"{module!r} defines no workflow; is @workflow missing?")
    names = ", ".join(f"{module}:{one.fn.__name__}" for one in there)
    raise UnknownWorkflow(f"which workflow of {module!r} is meant? It defines {names}")


def join(catalog: Catalog, module: str | None = None) -> list[Problem]:
    """Add the workflows of the loaded modules, or of one; what is wrong with those that cannot be added."""
    chosen = list(defined.values()) if module is None else _workflows_in(module)
    if module is not None and not chosen:
        raise UnknownWorkflow(f"{module!r} defines no workflow; is @workflow missing?")
    return [problem for one in chosen for problem in _register(catalog, one)]


def _register(catalog: Catalog, one: AnyWorkflow) -> list[Problem]:
    code = one.fn.__code__
    try:
        catalog.register(one.workflow)
    except InvalidWorkflow as error:
        return [replace(fault, file=code.co_filename, line=code.co_firstlineno) for fault in error.problems]
    except (Invalid, Misconfigured, TypeError) as error:  # Of the function, when it was called to be written down.
        return [Problem(str(error), (), code.co_filename, code.co_firstlineno)]
    return []


def _workflows_in(module: str) -> list[AnyWorkflow]:
    if not module.endswith(SUFFIX):
        return [one for one in defined.values() if one.fn.__module__ == module]
    path = Path(module).expanduser().resolve()
    return [one for one in defined.values() if Path(one.fn.__code__.co_filename).resolve() == path]
