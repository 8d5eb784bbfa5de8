"""The workflows that can be submitted: the files of a folder, and those registered in Python."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from dagmaster.authoring.implicit import QueueRules, resolve_queues
from dagmaster.authoring.yaml import read_file
from dagmaster.errors import Misconfigured, UnknownWorkflow
from dagmaster.model.problems import InvalidWorkflow, Problem, did_you_mean
from dagmaster.model.workflow import Workflow

_SUFFIXES: Final = (".yaml", ".yml")
# The source of workflows that have no file.
IN_PYTHON: Final = "Python code"


@dataclass(frozen=True, slots=True)
class _File:
    """The parsed content of a file, and the stamp that reveals changes."""

    stamp: tuple[int, int] | None
    workflow: Workflow | None
    problems: tuple[Problem, ...]


class Catalog:
    """A broken file does not prevent the loading of others; its problems are in `problems`."""

    def __init__(
        self, folder: Path | None = None, *, queues: QueueRules = QueueRules(), must_exist: bool = True
    ) -> None:
        """Without `must_exist`, the folder may be created later."""
        self._folder, self._must_exist = folder, must_exist
        self.queues = queues
        self._files: dict[Path, _File] = {}
        self._registered: dict[str, Workflow] = {}
        self._made: dict[str, Workflow] = {}
        # These mappings are replaced by `reload`, never changed. Workflows and their files, by id:
        self.workflows: Mapping[str, Workflow] = {}
        self.sources: Mapping[str, str] = {}
        # By file, warnings included; files without problems are left out.
        self.problems: Mapping[str, tuple[Problem, ...]] = {}
        self.reload()

    def get(self, workflow_id: str, version: int | None = None) -> Workflow:
        """Raise UnknownWorkflow, also if another version is loaded."""
        workflow = self.workflows.get(workflow_id)
        if workflow is None:
            raise UnknownWorkflow(self._explain_unknown(workflow_id))
        if version not in (None, workflow.version):
            raise UnknownWorkflow(f"workflow {workflow_id!r} is loaded in version {workflow.version}, not {version}")
        return workflow

    def register(self, workflow: Workflow) -> Workflow:
        """Add or replace a workflow defined in Python; its queues are filled in. Raise InvalidWorkflow."""
        resolved = resolve_queues(workflow, self.queues)
        problems = self.queues.find_problems(resolved)
        if any(problem.is_error and not (self.queues.is_open and problem.is_about_queue) for problem in problems):
            raise InvalidWorkflow(problems)
        self._registered[workflow.workflow_id] = resolved
        self._made[workflow.workflow_id] = workflow
        self._publish()
        return resolved

    def reload(self) -> None:
        """Read the files that have changed, and drop the deleted ones."""
        self._files = {path: self._read(path) for path in self._list_files()}
        self._publish()

    def use(self, queues: QueueRules) -> None:
        """Use other handlers or queues. Files edited meanwhile wait for `reload`."""
        self.queues = queues
        self._registered = {name: resolve_queues(workflow, queues) for name, workflow in self._made.items()}
        unchanged = {path for path, file in self._files.items() if file.stamp and file.stamp == _stamp(path)}
        read = {path: self._parse(path) for path in unchanged}
        self._files = {path: read.get(path, file) for path, file in self._files.items()}
        self._publish()

    def _list_files(self) -> list[Path]:
        if self._folder is None or not (self._must_exist or self._folder.is_dir()):
            return []
        if not self._folder.is_dir():
            raise Misconfigured(f"the workflows folder {str(self._folder)!r} does not exist")
        paths = (path for path in self._folder.iterdir() if path.suffix in _SUFFIXES and path.name[0] != ".")
        return sorted(path for path in paths if path.is_file())

    def _read(self, path: Path) -> _File:
        known = self._files.get(path)
        stamp = _stamp(path)
        if known and stamp and known.stamp == stamp:
            return known
        return self._parse(path)

    def _parse(self, path: Path) -> _File:
        stamp = _stamp(path)
        workflow, problems = read_file(path, queues=self.queues)
        return _File(stamp, workflow, problems)

    def _publish(self) -> None:
        workflows = dict(self._registered)
        sources = dict.fromkeys(self._registered, IN_PYTHON)
        problems: dict[str, tuple[Problem, ...]] = {}
        for path, file in self._files.items():
            file_problems = file.problems
            if file.workflow and (first := sources.get(file.workflow.workflow_id)):
                message = (
                    f"the workflow_id {file.workflow.workflow_id!r} is already used by {first}; this file is ignored"
                )
                file_problems = (*file_problems, Problem(message, ("workflow_id",), str(path)))
            elif file.workflow:
                workflows[file.workflow.workflow_id] = file.workflow
                sources[file.workflow.workflow_id] = str(path)
            if file_problems:
                problems[str(path)] = file_problems
        self.workflows = MappingProxyType(workflows)
        self.problems = MappingProxyType(problems)
        self.sources = MappingProxyType(sources)

    def _explain_unknown(self, workflow_id: str) -> str:
        loaded = ", ".join(sorted(self.workflows)) or "none"
        broken = [Path(path).name for path, problems in self.problems.items() if any(p.is_error for p in problems)]
        also = f"; not loaded because of problems: {', '.join(broken)}" if broken else ""
        hint = did_you_mean(workflow_id, self.workflows)
        return f"no workflow is named {workflow_id!r}; loaded are: {loaded}{also}{hint}"


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size
