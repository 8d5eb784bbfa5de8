"""How long things took, as bars that can be drawn: each bucket about twice as wide as the one before."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, log10
from typing import Final

from dagmaster.web.ui.filters import duration

WIDTH: Final = 760.0
HEIGHT: Final = 170.0
LEFT: Final = 8.0
TOP: Final = 34.0
GAP: Final = 3.0
ROOM: Final = 16.0  # Above the highest bar, for its number.
# Seconds: 1, 2 and 5 of each power of ten, which are about equally far apart on a logarithmic scale.
EDGES: Final = tuple(factor * 10.0**power for power in range(-3, 6) for factor in (1, 2, 5))
MARKS: Final = ((0.5, "p50"), (0.95, "p95"), (0.99, "p99"))


@dataclass(frozen=True, slots=True)
class Bar:
    """From `start` on and below `end`, in seconds; what is drawn lies between `y` and the ground."""

    start: float
    end: float
    completed: int
    failed: int
    x: float
    width: float
    y_failed: float
    y: float

    @property
    def count(self) -> int:
        return self.completed + self.failed

    @property
    def label(self) -> str:
        return f"{duration(self.start) if self.start else '0 ms'} to {duration(self.end)}"


@dataclass(frozen=True, slots=True)
class Mark:
    """As long as this, or shorter, took that share. `row` keeps the names of near ones apart."""

    name: str
    seconds: float
    x: float
    row: int
    is_left: bool


@dataclass(frozen=True, slots=True)
class Histogram:
    bars: tuple[Bar, ...]
    marks: tuple[Mark, ...]
    total: int
    failed: int

    width: float = LEFT * 2 + WIDTH
    ground: float = TOP + HEIGHT


def draw_histogram(completed: Sequence[float], failed: Sequence[float] = ()) -> Histogram | None:
    """None when nothing was timed. The marks are of all together."""
    both = sorted([*completed, *failed])
    if not both:
        return None
    edges = _edges(both[0], both[-1])
    counts = [(_count(completed, *pair), _count(failed, *pair)) for pair in pairwise(edges)]
    most = max(sum(pair) for pair in counts)
    step = WIDTH / len(counts)
    bars = []
    for place, (good, bad) in enumerate(counts):
        heights = [(HEIGHT - ROOM) * part / most for part in (good + bad, bad)]
        x = LEFT + place * step + GAP / 2
        bars.append(
            Bar(
                edges[place],
                edges[place + 1],
                good,
                bad,
                round(x, 2),
                round(step - GAP, 2),
                *(round(TOP + HEIGHT - height, 2) for height in reversed(heights)),
            )
        )
    return Histogram(tuple(bars), _marks(both, edges, step), len(both), len(failed))


def percentile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that is at least as long as this share of all."""
    return ordered[max(ceil(share * len(ordered)), 1) - 1]


def _edges(shortest: float, longest: float) -> list[float]:
    """From the last edge that is not above the shortest to the first above the longest."""
    start = max((edge for edge in EDGES if edge <= shortest), default=0.0)
    inner = [edge for edge in EDGES if start < edge <= longest]
    end = next((edge for edge in EDGES if edge > longest), longest * 2)
    return [start, *inner, end]


def _count(values: Sequence[float], start: float, end: float) -> int:
    return sum(start <= one < end for one in values)


def _marks(ordered: Sequence[float], edges: Sequence[float], step: float) -> tuple[Mark, ...]:
    marks = []
    for row, (share, name) in enumerate(MARKS):
        seconds = percentile(ordered, share)
        x = LEFT + step * _position(seconds, edges)
        marks.append(Mark(name, seconds, round(x, 2), row, x > LEFT + WIDTH * 0.75))
    return tuple(marks)


def _position(seconds: float, edges: Sequence[float]) -> float:
    """In buckets from the left."""
    place = max(index for index, edge in enumerate(edges[:-1]) if edge <= seconds)
    start, end = edges[place], edges[place + 1]
    if not start:
        return place + seconds / end
    return place + (log10(seconds) - log10(start)) / (log10(end) - log10(start))
