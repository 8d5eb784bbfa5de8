"""Charts for templates: columns with axes, and rows of small ticks.

Columns are drawn in their own units and stretched to the page, so no script is needed. The labels of the axes are HTML
text at equal distances, which is not stretched.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median
from typing import Any, Final

from dagmaster.model.states import JOB_TERMINAL
from dagmaster.web.ui.filters import duration, exact, minute, share, short
from dagmaster.web.views import run_seconds

Row = Mapping[str, Any]

COLUMN: Final = 10.0
GAP: Final = 1.5
HEIGHT: Final = 100.0
LEAST: Final = 1.5  # of the height, so that a short run stays visible
FEWEST: Final = 25  # columns that the chart has room for, so that few are not too wide
# Maxima of axes whose half is a round number too.
COUNTS: Final = (2, 4, 6, 8, 10)
SECONDS: Final = (
    *(factor * 10.0**power for power in (-3, -2, -1, 0) for factor in (1, 2, 4)),
    *(10, 20, 30, 60, 120, 240, 600, 1200, 1800, 3600, 7200, 14_400, 28_800, 43_200, 86_400, 172_800, 345_600, 864_000),
)
# Heights differ too, so that colour is not the only difference.
TICK_HEIGHTS: Final = {"failed": 16, "completed": 11, "running": 7, "pending": 4, "cancelled": 7}


@dataclass(frozen=True, slots=True)
class Part:
    """A segment of a column; `name` is a status."""

    name: str
    y: float
    height: float


@dataclass(frozen=True, slots=True)
class Column:
    """`tip` and `at` are shown as a tooltip. With a URL it is a link."""

    key: str
    x: float
    parts: tuple[Part, ...]
    tip: str
    at: datetime | None = None
    href: str | None = None


@dataclass(frozen=True, slots=True)
class Mark:
    """A vertical line; `x` is in percent from the left, and `row` separates the labels of close marks."""

    name: str
    seconds: float
    x: float
    row: int


@dataclass(frozen=True, slots=True)
class Chart:
    """Axes are labelled from the top and from the left. The table has the same numbers as text."""

    columns: tuple[Column, ...]
    up: tuple[str, ...]
    along: tuple[str, ...]
    summary: str
    legend: tuple[str, ...]
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    middle: float | None = None
    marks: tuple[Mark, ...] = ()

    width: float = 0.0
    height: float = HEIGHT
    bar: float = COLUMN - GAP


@dataclass(frozen=True, slots=True)
class Tick:
    key: str
    status: str
    x: float
    y: float
    height: float


@dataclass(frozen=True, slots=True)
class Ticks:
    """The last runs, oldest first, and their success rate."""

    ticks: tuple[Tick, ...]
    text: str
    percent: float | None
    width: float


def draw_throughput(rows: Sequence[Row]) -> Chart:
    """Jobs that ended in each minute, the failed ones on top."""
    counts = [(row["bucket_start"], row["jobs_completed"], row["jobs_failed"]) for row in rows]
    top = count_top(max((good + bad for _, good, bad in counts), default=0))
    columns = tuple(
        Column(
            key=f"{at:%H%M}",
            x=place * COLUMN,
            parts=stack((("completed", good), ("failed", bad)), top),
            tip=f"{good} completed, {bad} failed",
            at=at,
        )
        for place, (at, good, bad) in enumerate(counts)
    )
    good, bad = sum(good for _, good, _ in counts), sum(bad for _, _, bad in counts)
    return Chart(
        columns,
        up=(f"{top:g}", f"{top / 2:g}", "0"),
        along=("60 min ago", "45", "30", "15", "now"),
        summary=f"Jobs that ended in the last hour: {good} completed, {bad} failed",
        legend=("completed", "failed"),
        heads=("Minute", "Completed", "Failed"),
        rows=tuple((minute(at), str(good), str(bad)) for at, good, bad in counts if good or bad),
        width=len(counts) * COLUMN,
    )


def draw_durations(runs: Sequence[Row]) -> Chart | None:
    """The duration of each run, oldest first; None before the first run has started."""
    begun = [run for run in reversed(runs) if run["started_at"] is not None]
    if not begun:
        return None
    took = [run_seconds(run) or 0.0 for run in begun]
    # An unfinished run may last much longer: it reaches the top, and the others stay distinguishable.
    ended = [seconds for run, seconds in zip(begun, took, strict=True) if run["completed_at"] is not None]
    top = seconds_top(max(ended, default=max(took)))
    usual, free = median_seconds(runs), max(FEWEST - len(begun), 0)
    columns = tuple(
        Column(
            key=str(run["job_id"]),
            x=(free + place) * COLUMN,
            parts=stack(((run["status"], min(seconds, top)),), top),
            tip=f"{run['status']}, {duration(seconds)}, job {run['job_id']}",
            at=run["created_at"],
            href=f"/ui/jobs/{run['job_id']}",
        )
        for place, (run, seconds) in enumerate(zip(begun, took, strict=True))
    )
    return Chart(
        columns,
        up=(duration(top), duration(top / 2), "0"),
        along=("" if free else short(begun[0]["created_at"]), short(begun[-1]["created_at"])),
        summary=f"Duration of the last {f'{len(begun)} runs' if len(begun) > 1 else 'run'}, newest on the right",
        legend=tuple(sorted({run["status"] for run in begun})),
        heads=("Job", "Status", "Created", "Duration"),
        rows=tuple(
            (str(run["job_id"]), run["status"], exact(run["created_at"]), duration(seconds))
            for run, seconds in zip(reversed(begun), reversed(took), strict=True)
        ),
        middle=None if usual is None else round(HEIGHT - HEIGHT * usual / top, 2),
        width=(free + len(begun)) * COLUMN,
    )


def draw_ticks(runs: Sequence[Row]) -> Ticks:
    """The newest runs; the argument is sorted newest first."""
    ticks = []
    for place, run in enumerate(reversed(runs)):
        height = TICK_HEIGHTS[run["status"]]
        ticks.append(Tick(str(run["job_id"]), run["status"], place * 4.0, 16.0 - height, height))
    return Ticks(tuple(ticks), _ticks_text(runs), success_percent(runs), max(len(runs) * 4.0 - 1.0, 1.0))


def success_percent(runs: Iterable[Row]) -> float | None:
    """The share of completed runs among completed and failed ones; None without any."""
    ended = [run["status"] == "completed" for run in runs if run["status"] in ("completed", "failed")]
    return share(sum(ended), len(ended)) if ended else None


def median_seconds(runs: Iterable[Row]) -> float | None:
    """The median of completed runs: failed ones may have ended early."""
    took = [run_seconds(run) for run in runs if run["status"] == "completed"]
    durations = [seconds for seconds in took if seconds is not None]
    return median(durations) if durations else None


def count_top(most: int) -> float:
    size = 1
    while True:
        for count in COUNTS:
            if most <= count * size:
                return count * size
        size *= 10


def seconds_top(most: float) -> float:
    return next((seconds for seconds in SECONDS if most <= seconds), most)


def stack(values: Iterable[tuple[str, float]], top: float) -> tuple[Part, ...]:
    """From the bottom up; every part is high enough to be visible."""
    parts, y = [], HEIGHT
    for name, value in values:
        if value > 0 or name in JOB_TERMINAL - {"completed", "failed"}:
            height = max(round(HEIGHT * value / top, 2), LEAST)
            y = max(round(y - height, 2), 0.0)
            parts.append(Part(name, y, height))
    return tuple(parts)


def _ticks_text(runs: Sequence[Row]) -> str:
    if not runs:
        return "Never run"
    counts = {status: sum(run["status"] == status for run in runs) for status in TICK_HEIGHTS}
    listed = ", ".join(f"{number} {status}" for status, number in counts.items() if number)
    return f"Of the last {len(runs)} runs: {listed}" if len(runs) > 1 else f"Only run: {runs[0]['status']}"
