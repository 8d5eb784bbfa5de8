"""The pages of the documentation: their blocks, the marks before them, and the comparison of their output."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Block:
    place: str
    language: str
    text: str
    marks: dict[str, str] = field(default_factory=dict)

    @property
    def is_workflow(self) -> bool:
        return self.language == "yaml" and ("nodes" in self.marks or bool(re.search(r"^nodes:", self.text, re.M)))


@dataclass(frozen=True)
class Page:
    path: Path
    text: str
    kind: str
    blocks: list[Block]

    @property
    def name(self) -> str:
        return str(self.path.relative_to(ROOT))


ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_COMMENT = re.compile(r"<!-- ([\w ]+?)(?:: (.*?))? -->")
SYMBOLS = "[○◌●✓✗–↻]"
_FENCE = re.compile(r"```(\w*)")


def find_pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def read_page(path: Path) -> Page:
    text = path.read_text(encoding="utf-8")
    kind = next((value for name, value in _COMMENT.findall(text) if name == "page"), "")
    return Page(path, text, kind, list(_blocks(text.splitlines(), str(path.relative_to(ROOT)))))


def _blocks(lines: Sequence[str], name: str) -> Iterator[Block]:
    marks: dict[str, str] = {}
    start: int | None = None
    language = ""
    for number, line in enumerate(lines, 1):
        fence = _FENCE.match(line.strip())
        if start is not None and fence:
            indent = len(lines[start - 1]) - len(lines[start - 1].lstrip())
            text = "".join(f"{inner[indent:]}\n" for inner in lines[start : number - 1])
            yield Block(f"{name}:{start}", language, text, marks)
            start, marks = None, {}
        elif start is None and fence:
            start, language = number, fence[1]
        elif start is None and line.strip():
            comment_marks = dict(_COMMENT.findall(line)) if _COMMENT.fullmatch(line.strip()) else None
            marks = {**marks, **comment_marks} if comment_marks is not None else {}


# Comparing output

_MASKS = [
    (re.compile(pattern), mask)
    for pattern, mask in (
        (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)?", "TIME"),
        (r"\b\d\d:\d\d:\d\d(\.\d+)?\b", "TIME"),
        (r"\b\d{4}-\d\d-\d\d\b", "DATE"),
        (r"\b\d{15,20}", "ID"),
        (r"\b[0-9a-f]{40,64}\b", "HASH"),
        (r"[+]?\b\d+(\.\d+)? (ms|s|min)\b", "DURATION"),
        (r"(\w*duration\w*\"?[:=] ?)[\d.]+", r"\1DURATION"),
        (rf"{SYMBOLS} (?=\w)", ""),  # For people; a pipe gets plain words.
        (r"\s+", " "),
    )
]


def mask(line: str) -> str:
    for pattern, replacement in _MASKS:
        line = pattern.sub(replacement, line)
    return line.strip()


def find_missing(expected: str, actual: str) -> str | None:
    """The first expected line that is missing, in order."""
    lines = iter([mask(line) for line in actual.splitlines()])
    for line in expected.splitlines():
        expected_line = mask(line)
        if not expected_line or expected_line == "...":
            continue
        pattern = re.compile(re.escape(expected_line).replace(r"\.\.\.", ".*"))
        if not any(pattern.fullmatch(line_of_output) for line_of_output in lines):
            return line
    return None
