"""Schedule rules in words, and durations as bars."""

import pytest

from dagmaster.web.ui.charts import HEIGHT
from dagmaster.web.ui.histogram import draw_histogram, percentile
from dagmaster.web.ui.schedules import rule_in_words


@pytest.mark.parametrize(
    ("cron", "words"),
    [
        ("0 6 * * *", "every day at 06:00 UTC"),
        ("30 6,18 * * *", "every day at 06:30 and 18:30 UTC"),
        ("* * * * *", "every minute UTC"),
        ("*/15 * * * *", "every 15 minutes UTC"),
        ("0 * * * *", "every hour UTC"),
        ("5 * * * *", "every hour at minute 5 UTC"),
        ("0 */4 * * *", "every 4 hours UTC"),
        ("*/15 8-17 * * 1-5", "every 15 minutes from 08:00 to 17:59, Monday to Friday UTC"),
        ("0 9 * * 1", "every Monday at 09:00 UTC"),
        ("0 9 * * sat,SUN", "every Saturday and Sunday at 09:00 UTC"),
        ("0 0 1 * *", "on day 1 of every month at 00:00 UTC"),
        ("0 0 L * *", "0 0 L * * (UTC)"),
        ("30 4 1 1 *", "30 4 1 1 * (UTC)"),
        ("0 0 1 * 1", "0 0 1 * 1 (UTC)"),
        ("1-5 * * * *", "1-5 * * * * (UTC)"),
        ("0 9 * * 1#2", "0 9 * * 1#2 (UTC)"),
    ],
)
def test_a_cron_expression_is_described_or_shown_unchanged(cron: str, words: str) -> None:
    assert rule_in_words(cron, None, "UTC") == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (1, "every second"),
        (45, "every 45 seconds"),
        (3600, "every hour"),
        (5400, "every 90 minutes"),
        (86400 * 7, "every 7 days"),
    ],
)
def test_an_interval_uses_its_largest_whole_unit(seconds: float, words: str) -> None:
    assert rule_in_words(None, seconds, "UTC") == words


def test_without_durations_there_is_no_chart() -> None:
    assert draw_histogram([]) is None


def test_every_duration_is_in_exactly_one_bucket() -> None:
    completed = [0.0, 0.0004, 0.001, 0.002, 0.0199, 0.02, 1.0, 59.9, 3600.0, 999_999.0]
    chart = draw_histogram(completed, [0.5, 20_000_000.0])
    assert chart is not None
    assert sum(int(row[1]) for row in chart.rows) == len(completed)
    assert sum(int(row[2]) for row in chart.rows) == 2
    assert ("20 ms to 50 ms", "1", "0") in chart.rows
    assert chart.summary.startswith("12 attempts, 2 failed.")


@pytest.mark.parametrize("longest", [0.0, 0.003, 1.0, 3600.0, 20_000_000.0])
def test_labels_are_equidistant_and_end_with_the_axis(longest: float) -> None:
    chart = draw_histogram([0.001, longest])
    assert chart is not None
    assert len(chart.rows) % (len(chart.along) - 1) == 0
    assert len(chart.along) <= 7


def test_columns_and_marks_are_inside_the_chart() -> None:
    chart = draw_histogram([0.3] * 98 + [7.0], [7.0])
    assert chart is not None
    assert all(0 <= part.y <= HEIGHT - part.height + 0.01 for column in chart.columns for part in column.parts)
    assert [(mark.name, mark.seconds) for mark in chart.marks] == [("p50", 0.3), ("p95", 0.3), ("p99", 7.0)]
    assert all(0 <= mark.x <= 100 for mark in chart.marks)


def test_a_percentile_is_a_measured_duration() -> None:
    assert percentile([1, 2, 3, 4], 0.5) == 2
    assert percentile([5], 0.99) == 5
