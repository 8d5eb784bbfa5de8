"""The problems of a workflow, their locations, and parts of their messages."""

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from heapq import nlargest
from itertools import pairwise
from typing import Final, Literal

from dagmaster.errors import Invalid

Severity = Literal["error", "warning"]
About = Literal["handler", "queue", "params"]
Path = tuple[str | int, ...]

# A comparison of names takes up to 0.1 ms. Of more names, only those with the most letter pairs in common are compared.
MAX_COMPARED: Final = 1000


@dataclass(frozen=True, slots=True)
class Problem:
    """`path` leads to the place in the workflow; file, line and column are known if it was read from a file.

    `about`: an unknown handler, a missing queue, or parameters that a handler rejects. All three depend on the
    workers, and may be resolved elsewhere or later.
    """

    message: str
    path: Path = ()
    file: str | None = None
    line: int | None = None
    column: int | None = None
    severity: Severity = "error"
    about: About | None = None

    @property
    def is_about_handler(self) -> bool:
        return self.about == "handler"

    @property
    def is_about_queue(self) -> bool:
        return self.about == "queue"

    @property
    def is_error(self) -> bool:
        return self.severity == "error"

    def __str__(self) -> str:
        return f"{self._place}{self.severity}: {self.message}"

    @property
    def _place(self) -> str:
        marks = [str(mark) for mark in (self.file, self.line, self.column) if mark is not None]
        if self.line is None and self.path:
            marks.append(".".join(map(str, self.path)))
        return "".join(f"{mark}:" for mark in marks) + (" " if marks else "")


class InvalidWorkflow(Invalid):
    """The workflow has problems. All of them are in `problems`, warnings included."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))


def shorten(text: str) -> str:
    return text if len(text) <= 120 else f"{text[:117]}..."


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name; empty if no known name is close."""
    close = find_close(name, known)
    return f"; did you mean {close!r}?" if close else ""


def find_close(name: str, known: Iterable[str]) -> str | None:
    """The known name that was probably meant."""
    folded, by_folded = name.casefold(), {candidate.casefold(): str(candidate) for candidate in known}
    likely: Iterable[str] = by_folded
    if len(by_folded) > MAX_COMPARED:
        pairs = {*pairwise(folded)}
        likely = nlargest(100, by_folded, key=lambda candidate: len(pairs.intersection(pairwise(candidate))))
    close = get_close_matches(folded, likely, n=1, cutoff=0.6)
    return by_folded[close[0]] if close else None
