"""Draw a Gantt chart: the server turns times into percentages of the width, and the browser scales them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from dagmaster.web.ui.filters import clock_text, duration, share
from dagmaster.web.ui.gantt import Bar, Gantt, GanttRow, Strip

MARGIN: Final = 1.02  # of the duration, so that the last bar does not touch the edge
TICKS: Final = 8
LEVELS: Final = 6  # how often the chart can be zoomed in by 2
NARROW: Final = 1.5  # percent: the icon of a narrower bar is drawn beside it
CHECKED: Final = 4.0  # percent: the minimum width of a completed bar with an icon
STRIP_HEIGHT: Final = 14.0
# Seconds between two ticks.
STEPS: Final = (
    *(factor * 10.0**power for power in (-3, -2, -1) for factor in (1, 2, 5)),
    *(1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400, 172_800, 604_800),
)


@dataclass(frozen=True, slots=True)
class DrawnBar:
    """`x` and widths in percent; a bar without `width` has not started. `mark` is the status whose icon it shows."""

    attempt: int
    status: str
    tip: str
    queue_x: float
    queue_width: float
    x: float
    width: float | None
    mark: str | None

    @property
    def is_narrow(self) -> bool:
        return (self.width or 0) < NARROW


@dataclass(frozen=True, slots=True)
class Step:
    """A part of a fan-out's strip."""

    x: float
    width: float
    height: float
    has_failed: bool


@dataclass(frozen=True, slots=True)
class DrawnRow:
    node_id: str
    status: str
    label: str
    bars: tuple[DrawnBar, ...]
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Tick:
    """Shown when the chart is zoomed in at least `level` times by 2."""

    x: float
    label: str
    level: int


@dataclass(frozen=True, slots=True)
class GanttChart:
    """`now` is None for a job that has ended."""

    rows: tuple[DrawnRow, ...]
    ticks: tuple[Tick, ...]
    now: float | None


@dataclass(frozen=True, slots=True)
class Scale:
    since: datetime
    until: datetime

    @property
    def seconds(self) -> float:
        return max((self.until - self.since).total_seconds(), 0.001) * MARGIN

    def x(self, at: datetime) -> float:
        return share((at - self.since).total_seconds(), self.seconds)

    def width(self, start: datetime, end: datetime) -> float:
        return max(share((end - start).total_seconds(), self.seconds), 0.0)


def draw_gantt(gantt: Gantt) -> GanttChart:
    scale = Scale(gantt.since, gantt.until)
    rows = tuple(_row(row, scale) for row in gantt.rows)
    return GanttChart(rows, tuple(_ticks(scale.seconds)), scale.x(gantt.until) if gantt.is_open else None)


def _row(row: GanttRow, scale: Scale) -> DrawnRow:
    bars = tuple(_bar(bar, scale, is_only=len(row.bars) == 1, has_strip=row.strip is not None) for bar in row.bars)
    children = [f"{row.strip.children} children, at most {max(row.strip.running)} at a time"] if row.strip else []
    label = "; ".join([row.node_id, *children, *(bar.tip for bar in bars)])
    return DrawnRow(row.node_id, row.status, label, bars, tuple(_steps(row.strip, scale)) if row.strip else ())


def _bar(bar: Bar, scale: Scale, *, is_only: bool, has_strip: bool) -> DrawnBar:
    """A bar that has not ended reaches the end of the chart."""
    end = bar.ended_at or scale.until
    start = bar.started_at or end
    queued_from = bar.dispatched_at or start
    end = max(end, start)
    width = scale.width(start, end) if bar.started_at else None
    has_check = bar.status == "completed" and not has_strip and (width or 0) > CHECKED
    return DrawnBar(
        attempt=bar.attempt,
        status=bar.status,
        tip=_tip(bar, queued_from, start, end, is_only=is_only),
        queue_x=scale.x(queued_from),
        queue_width=scale.width(queued_from, start),
        x=scale.x(start),
        width=width,
        mark=bar.status if width is not None and (bar.status == "failed" or has_check) else None,
    )


def _tip(bar: Bar, queued_from: datetime, start: datetime, end: datetime, *, is_only: bool) -> str:
    attempt = "" if is_only else f"attempt {bar.attempt} "
    queued = duration(max((start - queued_from).total_seconds(), 0))
    ran = ""
    if bar.started_at:
        ran = f", {'ran' if bar.ended_at else 'running for'} {duration((end - start).total_seconds())}"
    return f"{attempt}{bar.status}: queued {queued}{ran}, from {clock_text(queued_from)} UTC"


def _steps(strip: Strip, scale: Scale) -> Iterator[Step]:
    """How many children ran at a time, as steps inside of the bar of their fan-out."""
    size = (strip.until - strip.since) / len(strip.running)
    most = max(1, *strip.running)
    for place, (running, failed) in enumerate(zip(strip.running, strip.failed, strict=True)):
        start = strip.since + place * size
        if running or failed:
            height = round(STRIP_HEIGHT * running / most, 2)
            yield Step(scale.x(start), scale.width(start, start + size), height, bool(failed))


def _ticks(seconds: float) -> Iterator[Tick]:
    """At round times since the start; each level adds those that fit into twice the width."""
    seen: set[float] = set()
    for level in range(LEVELS + 1):
        step = tick_step(seconds, TICKS * 2**level)
        for at in _multiples(step, seconds):
            if at not in seen:
                seen.add(at)
                yield Tick(share(at, seconds), f"+{duration(at)}" if at else "0", level)


def tick_step(seconds: float, most: int) -> float:
    return next((step for step in STEPS if seconds / step <= most), seconds / most)


def _multiples(step: float, seconds: float) -> Sequence[float]:
    return [round(place * step, 3) for place in range(int(seconds / step) + 1)]
