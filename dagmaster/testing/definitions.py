"""Find the workflow that a test names: a file, a YAML string, or a workflow made in Python."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dagmaster.authoring.catalog import Catalog
from dagmaster.authoring.implicit import QueueRules, resolve_queues
from dagmaster.authoring.preparation import Find
from dagmaster.authoring.yaml import load_workflow, parse_workflow
from dagmaster.errors import Invalid
from dagmaster.model.problems import InvalidWorkflow
from dagmaster.model.workflow import Workflow
from dagmaster.python.workflows import WorkflowFunction, defined


def read_definition(source: Any, rules: QueueRules, folders: Sequence[Path]) -> Workflow:
    """Raise InvalidWorkflow with all problems. Files are looked up in the current folder, then in `folders`."""
    match source:
        case WorkflowFunction():
            return _checked(source.workflow, rules)
        case Workflow():
            return _checked(source, rules)
        case str() if "\n" in source:
            return parse_workflow(source, queues=rules)
        case str() | Path():
            return load_workflow(_find_file(Path(source), folders), queues=rules)
        case _:
            raise Invalid(f"a workflow must be a file, a YAML string, or a function with @workflow, not {source!r}")


def find_called(source: Any, rules: QueueRules, folders: Sequence[Path], workflows_dir: Path) -> Find:
    """Finds the workflows that this one calls: in Python, next to its file, in the workflows folder."""
    is_file = isinstance(source, Path) or (isinstance(source, str) and "\n" not in source)
    beside = [_find_file(Path(source), folders).parent] if is_file else []
    places = [folder for folder in (*beside, workflows_dir) if folder.is_dir()]

    def find(name: str) -> Workflow:
        if name in defined:
            return _checked(defined[name].workflow, rules)
        catalogs = [Catalog(folder, queues=rules) for folder in places]
        workflow = next((catalog.workflows[name] for catalog in catalogs if name in catalog.workflows), None)
        return workflow or Catalog(queues=rules).get(name)

    return find


def _checked(workflow: Workflow, rules: QueueRules) -> Workflow:
    resolved = resolve_queues(workflow, rules)
    problems = rules.find_problems(resolved)
    if any(problem.is_error for problem in problems):
        raise InvalidWorkflow(problems)
    return resolved


def _find_file(path: Path, folders: Sequence[Path]) -> Path:
    candidates = [path, *(folder / path for folder in folders)]
    file = next((candidate for candidate in candidates if candidate.is_file()), None)
    if file is None:
        places = ", ".join(str(candidate.absolute().parent) for candidate in candidates)
        raise Invalid(f"there is no workflow file {str(path)!r}; looked in {places}")
    return file
