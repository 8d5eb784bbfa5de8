"""The format of values on pages."""

from datetime import UTC, datetime, timedelta

import pytest

from dagmaster.web.ui.filters import (
    ago,
    attributes,
    clock,
    data,
    duration,
    exact,
    first_line,
    minute,
    number,
    prose,
    share,
    short,
    since,
)

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def test_an_unknown_duration_is_a_dash() -> None:
    assert (duration(None), duration(200)) == ("–", "3 min 20 s")


@pytest.mark.parametrize(
    ("seconds", "wording"),
    [
        (1, "now"),
        (-1, "now"),
        (59, "59 s ago"),
        (61, "1 min ago"),
        (7200, "2 h ago"),
        (90_000, "1 d ago"),
        (-90, "in 1 min"),
    ],
)
def test_times_are_relative_to_now(seconds: int, wording: str) -> None:
    assert since(NOON - timedelta(seconds=seconds), NOON) == wording


def test_the_exact_time_is_included() -> None:
    assert 'title="2026-03-01 12:00:00 UTC"' in ago(NOON)
    assert 'title="2026-03-01 12:00:00 UTC"' in ago("2026-03-01T13:00:00+01:00")
    assert (exact(None), ago(None), clock(None)) == ("–", "–", "–")
    assert ">12:00:00.123</time>" in clock("2026-03-01T12:00:00.123456+00:00")
    assert ">2026-03-01 12:00:00 UTC</time>" in exact(NOON)


def test_axis_times_are_in_the_readers_time_zone() -> None:
    assert 'title="2026-03-01 12:00:00 UTC" data-time="minute">12:00</time>' in minute(NOON)
    assert ">01 Mar 12:00</time>" in short(NOON)


def test_only_names_and_times_in_sentences_are_marked() -> None:
    wording = prose("Node `<a>` waits since 2026-03-01 12:00:00 UTC & more.")
    assert wording == f"Node <code>&lt;a&gt;</code> waits since {exact(NOON)} &amp; more."
    assert prose("`2026-03-01 12:00:00 UTC`") == "<code>2026-03-01 12:00:00 UTC</code>"


@pytest.mark.parametrize("day", ["2026-02-30", "2026-13-01", "0000-00-00"])
def test_a_day_that_does_not_exist_stays_as_it_is(day: str) -> None:
    assert prose(f"failed: no data of {day} 10:00:00 UTC") == f"failed: no data of {day} 10:00:00 UTC"


def test_json_for_scripts_cannot_end_its_element() -> None:
    written = data({"text": "</script><!--&"})
    assert "<" not in written and ">" not in written and "&" not in written


def test_attributes_are_escaped() -> None:
    assert attributes({"title": '"><script>'}) == 'title="&#34;&gt;&lt;script&gt;"'


def test_numbers_percentages_and_first_lines_are_formatted() -> None:
    assert (number(1234567), number(0.5), number(None)) == ("1,234,567", "0.50", "–")
    assert (share(1, 3), share(1, 0)) == (33.333, 0)
    assert (first_line("  one\ntwo"), first_line("abcdef", 4), first_line(None)) == ("one", "abc…", "")
