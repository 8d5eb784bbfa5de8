"""Read typed fields from a located document, and note problems and positions."""

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Any

from dagmaster.authoring.positions import Located, Mark
from dagmaster.model.problems import Path, Problem, Severity, find_close

Fields = dict[str, Located]


class Notes:
    """Reads fields, and keeps the problems so far and the position in the file of every path in the workflow.

    `has_lost_links`: a link between nodes could not be read, so a missing link may not really be missing.
    """

    def __init__(self, file: str | None, problems: Iterable[Problem] = ()) -> None:
        self.problems = list(problems)
        self.has_lost_links = False
        self._file = file
        self._marks: dict[Path, Mark] = {}

    def report(self, message: str, mark: Mark, severity: Severity = "error") -> None:
        self.problems.append(Problem(message, (), self._file, mark.line, mark.column, severity))

    def report_at(self, path: Path, message: str) -> None:
        """Report an error at the position of this path."""
        self.problems.append(self.locate(Problem(message, path)))

    def place(self, path: Path, located: Located) -> None:
        """Record the position of a value and of everything in it."""
        self._marks[path] = located.mark
        match located.value:
            case dict() as entries:
                for key, entry in entries.items():
                    self.place((*path, key), entry)
            case list() as items:
                for index, item in enumerate(items):
                    self.place((*path, index), item)

    def place_mark(self, path: Path, mark: Mark) -> None:
        self._marks[path] = mark

    def move(self, source: Path, target: Path) -> None:
        """Report problems of `target` at the position of `source`."""
        marks = {path: mark for path, mark in self._marks.items() if path[: len(source)] == source}
        self._marks.update({(*target, *path[len(source) :]): mark for path, mark in marks.items()})

    def locate(self, problem: Problem) -> Problem:
        """The problem with the position of its path, or of the nearest enclosing path."""
        for length in range(len(problem.path), -1, -1):
            if mark := self._marks.get(problem.path[:length]):
                return replace(problem, file=self._file, line=mark.line, column=mark.column)
        return replace(problem, file=self._file)

    @property
    def has_errors(self) -> bool:
        return any(problem.is_error for problem in self.problems)

    def read_fields(self, located: Located, known: Collection[str], label: str) -> Fields:
        """The entries of a mapping. A misspelt key is reported and read as the closest known key."""
        if not isinstance(located.value, dict):
            if located.value is not None:
                self.report(f"{label} must be a mapping of keys to values", located.mark)
            return {}
        entries: Fields = located.value
        fields = {key: entry for key, entry in entries.items() if key in known}
        for key, entry in entries.items():
            if key not in known:
                suggestion = find_close(key, [name for name in known if name not in fields])
                hint = f"; did you mean {suggestion!r}?" if suggestion else f"; known are {', '.join(known)}"
                self.report(f"unknown key {key!r} in {label}{hint}", entry.key_mark or entry.mark)
                if suggestion:
                    fields[suggestion] = entry
        return fields

    def read_text(self, located: Located | None, label: str) -> str | None:
        """A scalar as it was written, so that the node `yes` is not the boolean."""
        if located is None or located.value is None:
            return None
        if isinstance(located.value, dict | list):
            self.report(f"{label} must be a string", located.mark)
            return None
        return located.text

    def read_flag(self, located: Located | None, label: str, *, default: bool) -> bool:
        if located is None or located.value is None:
            return default
        if not isinstance(located.value, bool):
            self.report(f"{label} must be true or false", located.mark)
            return default
        return located.value

    def read_names(self, located: Located | None, path: Path, label: str) -> list[str]:
        """One name or a list of names."""
        if located is None or is_missing(located):
            return []
        items = located.value if isinstance(located.value, list) else [located]
        names: list[str] = []
        for item in items:
            if is_missing(item):
                self.report(f"a name in {label} is empty", item.mark)
            if name := self.read_text(item, f"each name in {label}"):
                self.place((*path, len(names)), item)
                names.append(name)
            else:
                self.has_lost_links = True
        return names

    def read_mapping(self, located: Located | None, path: Path, label: str) -> dict[str, Any]:
        """Any mapping, as plain data."""
        if located is None or located.value is None:
            return {}
        if not isinstance(located.value, dict):
            self.report(f"{label} must be a mapping of names to values", located.mark)
            return {}
        self.place(path, located)
        plain: dict[str, Any] = located.plain
        return plain

    def read_plain(self, fields: Fields, key: str, path: Path) -> dict[str, Any]:
        """A value that the model checks; empty if it is missing."""
        located = fields.get(key)
        if located is None or located.value is None:
            return {}
        self.place((*path, key), located)
        return {key: located.plain}


def is_missing(located: Located | None) -> bool:
    """Missing or empty. A value that could not be read was already reported."""
    return located is None or (located.value in (None, "") and not located.is_broken)


def reason_of(message: str) -> str:
    """A message of pydantic as the second part of a sentence."""
    reason = message.removeprefix("Value error, ")
    return f"{reason[:1].lower()}{reason[1:]}"
