"""Record the times and durations in the sample output of a page from a real run."""

import re
from collections.abc import Iterator, Mapping

from docs_pages import SYMBOLS, Page

_CLOCK = r"\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|\+00:00)?"
_TIME = rf"\b\d{{4}}-\d\d-\d\d(?:[T ]{_CLOCK})?|\b{_CLOCK}"
_DURATION = r"(?<![\w.])\d+(?:\.\d+)? (?:ms|s|min)\b(?: \d+ s\b)?"
_SAMPLE = re.compile(f"{_TIME}|{_DURATION}")
_VARYING = {
    "id": (r"\b\d{15,20}", r"\d{15,20}"),
    "hash": (r"\b[0-9a-f]{40,64}\b", r"[0-9a-f]{40,64}"),
    "rest": (r"\.\.\.", ".*?"),
    "symbol": (f"{SYMBOLS} ", f"(?:{SYMBOLS} )?"),
    "space": (r"\s+", r"\s+"),
}
_VARIES = re.compile("|".join(f"(?P<{name}>{written})" for name, (written, _) in _VARYING.items()))


def record(expected: str, actual: str) -> str:
    """The expected lines with the times and durations of the actual output."""
    lines = iter(actual.splitlines())
    return "".join(_recorded(line, lines) for line in expected.splitlines(keepends=True))


def with_samples(page: Page, outputs: Mapping[str, str]) -> str:
    """The text of the page with the recorded outputs of its blocks, by position."""
    lines = page.text.splitlines(keepends=True)
    for block in page.blocks:
        if block.place in outputs:
            first = int(block.place.rpartition(":")[2])
            fence = lines[first - 1]
            indent = fence[: len(fence) - len(fence.lstrip())]
            new = record(block.text, outputs[block.place]).splitlines(keepends=True)
            lines[first : first + len(new)] = [indent + line if line.strip() else line for line in new]
    return "".join(lines)


def _recorded(line: str, lines: Iterator[str]) -> str:
    if not line.strip() or line.strip() == "...":
        return line
    pattern = re.compile(_pattern(line.strip()))
    match = next((match for actual in lines if (match := pattern.fullmatch(actual.strip()))), None)
    assert match is not None, f"no line of the output matches {line!r}"
    for written, sample in reversed(list(zip(_SAMPLE.finditer(line), match.groups(), strict=True))):
        line = _replaced(line, written.start(), written.end(), sample)
    return line


def _pattern(line: str) -> str:
    """A pattern for the line, with a group for each time and duration."""
    pattern, end = "", 0
    for sample in _SAMPLE.finditer(line):
        pattern += _plain(line[end : sample.start()]) + f"({_TIME}|{_DURATION})"
        end = sample.end()
    return pattern + _plain(line[end:])


def _plain(text: str) -> str:
    pattern, end = "", 0
    for varying in _VARIES.finditer(text):
        pattern += re.escape(text[end : varying.start()]) + _VARYING[varying.lastgroup or ""][1]
        end = varying.end()
    return pattern + re.escape(text[end:])


def _replaced(line: str, start: int, end: int, sample: str) -> str:
    """Keep the columns aligned: a value takes its space from the gap after it, a right-aligned one from before it."""
    before, after = line[:start], line[end:]
    more = len(sample) - (end - start)
    if after.startswith("  "):
        gap = len(after) - len(after.lstrip(" "))
        after = " " * max(gap - more, 2) + after[gap:]
    elif before.endswith("    "):
        gap = len(before) - len(before.rstrip(" "))
        before = before[:-gap] + " " * max(gap - more, 1)
    return before + sample + after
