"""The figures as a table, for the terminal and for the documentation, and as JSON."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import orjson

from benchmarks.figures import Figure

HEADER = ("", "Figure", "Measured", "Middle half", "Floor", "Ratio", "Bar", "Verdict")
LEFT = 2  # so many columns of text come first
BEGINS, ENDS = "<!-- figures: begin -->", "<!-- figures: end -->"


def table(figures: Sequence[Figure]) -> str:
    """In Markdown, padded so that it reads well as it is."""
    rows = [HEADER, *(_cells(figure) for figure in figures)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADER))]
    rule = ["-" * width if column < LEFT else "-" * (width - 1) + ":" for column, width in enumerate(widths)]
    lines = [_line(HEADER, widths), _line(rule, widths), *(_line(row, widths) for row in rows[1:])]
    return "\n".join(lines)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [
        cell.ljust(width) if column < LEFT else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return f"| {' | '.join(padded)} |"


def _cells(figure: Figure) -> tuple[str, ...]:
    spread = f"{_number(figure.spread[0])} to {_number(figure.spread[1])}" if figure.spread else ""
    return (
        figure.workload,
        figure.label,
        f"{_number(figure.value)} {figure.unit}".strip(),
        spread,
        f"{_number(figure.floor)} {figure.unit}".strip() if figure.floor else "",
        f"{figure.ratio:.2f}" if figure.ratio is not None else "",
        _bar(figure),
        figure.verdict,
    )


def _bar(figure: Figure) -> str:
    if figure.bar is None:
        return ""
    unit = "" if figure.ratio is not None else f" {figure.unit}"
    return f"{'≥' if figure.bar.at_least else '≤'} {figure.bar.limit:g}{unit}".rstrip()


def _number(value: float) -> str:
    """Three significant digits, and no fraction where it says nothing."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def missed(figures: Sequence[Figure]) -> list[Figure]:
    return [figure for figure in figures if figure.verdict == "MISSED"]


def to_json(figures: Sequence[Figure], about: str) -> bytes:
    rows = [asdict(figure) | {"ratio": figure.ratio, "verdict": figure.verdict} for figure in figures]
    return orjson.dumps({"about": about, "figures": rows}, option=orjson.OPT_INDENT_2)


def write_into(path: Path, text: str) -> None:
    """Replace what stands between the two marks."""
    before, begins, following = path.read_text(encoding="utf-8").partition(BEGINS)
    _, ends, after = following.partition(ENDS)
    if not begins or not ends:
        raise ValueError(f"{path} has no place for the figures; put {BEGINS} and {ENDS} into it")
    path.write_text(f"{before}{begins}\n{text}\n{ends}{after}", encoding="utf-8")
