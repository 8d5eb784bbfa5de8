from datetime import UTC, datetime, timedelta, timezone
from io import StringIO
from typing import Any

import orjson
from rich.console import Console

from dagmaster.cli.output import as_record, between, dump, duration, listed, print_for_reading


def test_an_unknown_duration_is_empty() -> None:
    assert (duration(None), duration(200)) == ("", "3 min 20 s")


def test_a_duration_is_never_negative() -> None:
    now = datetime.now(UTC)
    assert between(now, now - timedelta(seconds=5)) == 0
    assert between(None, now) is None
    assert (between(now - timedelta(seconds=5), None) or 0) >= 5


def test_a_json_row_has_ids_as_strings_and_times_in_utc() -> None:
    at = datetime(2026, 1, 31, 12, 0, tzinfo=timezone(timedelta(hours=2)))
    row = {"job_id": 2**60, "owner_id": None, "priority": 3, "created_at": at, "result": {"job_id": 1}}
    assert orjson.loads(dump(as_record(row))) == {
        "job_id": str(2**60),
        "owner_id": None,
        "priority": 3,
        "created_at": "2026-01-31T10:00:00Z",
        "result": {"job_id": 1},
    }


def printed(value: Any, width: int) -> str:
    screen = Console(file=StringIO(), width=width, highlight=False)
    print_for_reading(screen, value)
    assert isinstance(screen.file, StringIO)
    return screen.file.getvalue()


def test_short_json_is_one_line() -> None:
    assert printed({"a": {"b": [1, 2]}, "c": "[bold]x"}, 80) == '{"a": {"b": [1, 2]}, "c": "[bold]x"}\n'


def test_long_json_is_indented_and_still_json() -> None:
    value = {"first": {"numbers": [1, 2, 3]}, "second": [{"text": "x" * 30}, {}], "third": None}
    text = printed(value, 40)
    assert orjson.loads(text) == value
    assert '  "first": {"numbers": [1, 2, 3]},\n  "second": [\n' in text
    assert text.endswith('    {}\n  ],\n  "third": null\n}\n')


def test_long_lists_are_truncated() -> None:
    assert printed(list(range(1000)), 80) == '[0, 1, "… and 998 more"]\n'
    assert printed(list(range(10)), 80) == "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]\n"


def test_names_are_listed_up_to_a_limit() -> None:
    assert listed([]) == "none"
    assert listed(["a", "b", "c"], limit=2) == "a, b and 1 more"
