"""A histogram of durations: each bucket is about twice as wide as the previous one."""

from collections.abc import Sequence
from itertools import pairwise
from math import ceil, log10
from typing import Final

from dagmaster.web.ui.charts import COLUMN, Chart, Column, Mark, count_top, stack
from dagmaster.web.ui.filters import duration

# Seconds: 1, 2 and 5 times each power of ten, about equally spaced on a logarithmic scale.
EDGES: Final = tuple(factor * 10.0**power for power in range(-3, 7) for factor in (1, 2, 5))
MOST_LABELS: Final = 6
PERCENTILES: Final = ((0.5, "p50"), (0.95, "p95"), (0.99, "p99"))


def draw_histogram(completed: Sequence[float], failed: Sequence[float] = ()) -> Chart | None:
    """None without durations. The marks are percentiles of all durations."""
    both = sorted([*completed, *failed])
    if not both:
        return None
    edges = _edges(both[0], both[-1])
    step = _label_step(edges)
    buckets = [
        (start, end, _count(completed, start, end), _count(failed, start, end)) for start, end in pairwise(edges)
    ]
    top = count_top(max(good + bad for _, _, good, bad in buckets))
    columns = tuple(
        Column(
            key=str(place),
            x=place * COLUMN,
            parts=stack((("completed", good), ("failed", bad)), top),
            tip=f"{_range(start, end)}: {good} completed, {bad} failed",
        )
        for place, (start, end, good, bad) in enumerate(buckets)
    )
    marks = _marks(both, edges)
    return Chart(
        columns,
        up=(f"{top:g}", f"{top / 2:g}", "0"),
        along=tuple(duration(edge) if edge else "0" for edge in edges[::step]),
        summary=f"{len(both)} attempts, {len(failed)} failed. "
        + " ".join(f"{mark.name} {duration(mark.seconds)}." for mark in marks),
        legend=("completed", "failed"),
        heads=("Duration", "Completed", "Failed"),
        rows=tuple((_range(start, end), str(good), str(bad)) for start, end, good, bad in buckets),
        marks=marks,
        width=len(buckets) * COLUMN,
    )


def percentile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that is not exceeded by this share of all values."""
    return ordered[max(ceil(share * len(ordered)), 1) - 1]


def _edges(shortest: float, longest: float) -> list[float]:
    """From the last edge not above the shortest value to the first above the longest, padded so that equally spaced
    labels end at the last edge.
    """
    start = max((edge for edge in EDGES if edge <= shortest), default=0.0)
    inner = [edge for edge in EDGES if start < edge <= longest]
    above = [edge for edge in EDGES if edge > longest] or [longest * 2]
    edges = [start, *inner, above[0]]
    missing = -(len(edges) - 1) % _label_step(edges)
    further = [*above[1:], *(above[-1] * 2**power for power in range(1, missing + 1))]
    return [*edges, *further[:missing]]


def _label_step(edges: Sequence[float]) -> int:
    return ceil((len(edges) - 1) / MOST_LABELS)


def _count(values: Sequence[float], start: float, end: float) -> int:
    return sum(start <= value < end for value in values)


def _range(start: float, end: float) -> str:
    return f"{duration(start) if start else '0 ms'} to {duration(end)}"


def _marks(ordered: Sequence[float], edges: Sequence[float]) -> tuple[Mark, ...]:
    buckets = len(edges) - 1
    values = [(name, percentile(ordered, share)) for share, name in PERCENTILES]
    return tuple(
        Mark(name, seconds, round(100 * _position(seconds, edges) / buckets, 2), row)
        for row, (name, seconds) in enumerate(values)
    )


def _position(seconds: float, edges: Sequence[float]) -> float:
    """In buckets from the left."""
    place = max(index for index, edge in enumerate(edges[:-1]) if edge <= seconds)
    start, end = edges[place], edges[place + 1]
    if not start:
        return place + seconds / end
    return place + (log10(seconds) - log10(start)) / (log10(end) - log10(start))
