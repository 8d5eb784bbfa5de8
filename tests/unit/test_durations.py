"""Durations are formatted and parsed."""

import pytest

from dagmaster.model.durations import read_duration, write_duration


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-3, "0 ms"),
        (0, "0 ms"),
        (0.0004, "0 ms"),
        (0.85, "850 ms"),
        (0.9996, "1 s"),
        (1, "1 s"),
        (4.24, "4.2 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min"),
        (60, "1 min"),
        (65, "1 min 5 s"),
        (200, "3 min 20 s"),
        (3599, "59 min 59 s"),
        (3599.6, "1 h"),
        (3605, "1 h"),
        (7500, "2 h 5 min"),
        (86_400, "1 d"),
        (90_000, "1 d 1 h"),
        (273_600, "3 d 4 h"),
    ],
)
def test_a_duration_is_formatted_in_at_most_two_units(seconds: float, text: str) -> None:
    assert write_duration(seconds) == text


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("15m", 900), ("1h30m", 5400), ("2d", 172_800), ("1d 2h 3m 4.5s", 93_784.5)]
)
def test_durations_are_parsed_in_common_forms(text: str, seconds: float) -> None:
    assert read_duration(text) == seconds


@pytest.mark.parametrize("text", ["", " ", "m", "15", "15x", "30m1h", "-5m", "1.5h", "٣m", "9" * 40 + "s"])
def test_an_invalid_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        read_duration(text)
