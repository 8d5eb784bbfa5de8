"""The shapes of charts, and their descriptions."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dagmaster.web.ui.charts import count_top, draw_durations, draw_throughput, draw_ticks, seconds_top

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def a_run(status: str = "completed", seconds: float | None = 1.0, number: int = 1) -> dict[str, Any]:
    ended = None if seconds is None else NOW + timedelta(seconds=seconds)
    return {
        "job_id": number,
        "status": status,
        "created_at": NOW,
        "paused_at": None,
        "idle_seconds": 0.0,
        "started_at": NOW,
        "completed_at": ended,
    }


@pytest.mark.parametrize(("most", "top"), [(0, 2), (1, 2), (3, 4), (10, 10), (11, 20), (81, 100), (4000, 4000)])
def test_an_axis_of_counts_ends_at_a_round_number(most: int, top: float) -> None:
    assert count_top(most) == top


@pytest.mark.parametrize(("most", "top"), [(0.0005, 0.001), (0.3, 0.4), (9, 10), (31, 60), (3601, 7200), (1e7, 1e7)])
def test_an_axis_of_durations_ends_at_a_round_duration(most: float, top: float) -> None:
    assert seconds_top(most) == top


def test_throughput_is_stacked_and_available_as_a_table() -> None:
    buckets = [
        {"bucket_start": NOW + timedelta(minutes=n), "jobs_completed": good, "jobs_failed": bad}
        for n, (good, bad) in enumerate([(3, 1), (0, 0)])
    ]
    chart = draw_throughput(buckets)
    assert chart.up == ("4", "2", "0")
    assert [(part.name, part.y, part.height) for part in chart.columns[0].parts] == [
        ("completed", 25.0, 75.0),
        ("failed", 0.0, 25.0),
    ]
    assert chart.columns[1].parts == ()
    assert chart.columns[0].at == NOW, "scripts write it in the reader's zone"
    [(minute, *counts)] = chart.rows
    assert ">12:00</time>" in minute
    assert counts == ["3", "1"]


def test_durations_link_to_their_jobs_and_show_the_median() -> None:
    chart = draw_durations([a_run("failed", 9, 2), a_run("completed", 5, 1)])
    assert chart is not None
    assert [column.href for column in chart.columns] == ["/ui/jobs/1", "/ui/jobs/2"], "the newest on the right"
    assert chart.up == ("10 s", "5 s", "0")
    assert chart.middle == 50.0
    assert "failed, 9 s" in chart.columns[1].tip
    assert draw_durations([]) is None
    open_run = {**a_run("running", number=3), "started_at": NOW - timedelta(days=9), "completed_at": None}
    beside_open = draw_durations([open_run, a_run("completed", 5, 1)])
    assert beside_open is not None
    assert beside_open.up[0] == "10 s", "what has not ended does not flatten the others"
    assert beside_open.columns[1].parts[0].y == 0


def test_ticks_are_described_in_words() -> None:
    drawn = draw_ticks([a_run("failed", number=3), a_run(number=2), a_run(number=1)])
    assert [tick.status for tick in drawn.ticks] == ["completed", "completed", "failed"]
    assert drawn.ticks[2].height > drawn.ticks[0].height, "not by colour alone"
    assert drawn.text == "Of the last 3 runs: 1 failed, 2 completed"
    assert drawn.percent == pytest.approx(66.667)
    assert (draw_ticks([]).text, draw_ticks([]).percent) == ("Never run", None)
