"""The Gantt chart as the server renders it."""

from datetime import UTC, datetime, timedelta

import pytest

from dagmaster.web.ui.gantt import Bar, Gantt, GanttRow, Strip
from dagmaster.web.ui.gantt_chart import LEVELS, TICKS, GanttChart, draw_gantt

START = datetime(2026, 3, 1, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def drawn(*rows: GanttRow, seconds: float = 100, is_open: bool = False) -> GanttChart:
    return draw_gantt(Gantt(rows, START, at(seconds), is_open, has_more=False, offset=0))


def test_bars_are_percentages_of_the_jobs_duration() -> None:
    chart = drawn(GanttRow("a", "task", "completed", [Bar(1, "completed", at(0), at(25.5), at(51))]))
    [bar] = chart.rows[0].bars
    assert (bar.queue_x, bar.queue_width) == (0, 25)
    assert (bar.x, bar.width, bar.mark) == (25, 25, "completed")
    assert chart.now is None


def test_an_open_bar_ends_now() -> None:
    chart = drawn(GanttRow("a", "task", "running", [Bar(1, "running", at(0), at(0), None)]), is_open=True)
    [bar] = chart.rows[0].bars
    assert bar.width == chart.now == pytest.approx(98.039)
    assert "running for 1 min 40 s" in bar.tip


def test_every_attempt_has_a_bar_and_a_failed_one_a_mark() -> None:
    bars = [Bar(1, "failed", at(0), at(1), at(1.1)), Bar(2, "completed", at(2), at(3), at(90))]
    [row] = drawn(GanttRow("a", "task", "completed", bars)).rows
    assert [(bar.attempt, bar.mark, bar.is_narrow) for bar in row.bars] == [
        (1, "failed", True),
        (2, "completed", False),
    ]
    assert row.label.startswith("a; attempt 1 failed: queued 1 s, ran 100 ms")


def test_a_queued_task_has_no_bar() -> None:
    [row] = drawn(GanttRow("a", "task", "dispatched", [Bar(1, "dispatched", at(90), None, None)]), is_open=True).rows
    assert (row.bars[0].width, row.bars[0].mark) == (None, None)
    assert row.bars[0].queue_width > 9


def test_a_fan_outs_strip_shows_how_many_ran_and_where_some_failed() -> None:
    strip = Strip([0, 2, 4, 1], [0, 0, 0, 1], 5, at(0), at(100))
    [row] = drawn(GanttRow("each", "fan_out", "completed", [Bar(1, "completed", at(0), at(0), at(100))], strip)).rows
    assert [(step.height, step.has_failed) for step in row.steps] == [(7, False), (14, False), (3.5, True)]
    assert "5 children, at most 4 at a time" in row.label


@pytest.mark.parametrize("seconds", [0, 0.004, 1, 59, 3600, 90_000, 10_000_000])
def test_ticks_are_round_inside_the_chart_and_double_with_the_zoom(seconds: float) -> None:
    ticks = drawn(seconds=seconds).ticks
    assert ticks[0].label == "0"
    assert all(0 <= tick.x <= 100 for tick in ticks)
    for level in range(LEVELS + 1):
        assert sum(tick.level <= level for tick in ticks) <= 2 * TICKS * 2**level + 1
    assert len({tick.x for tick in ticks}) == len(ticks)
