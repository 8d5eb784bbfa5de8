from io import StringIO

import pytest
from rich.console import Console

from dagmaster.cli.columns import Listing

JOB = "247846017759457860"
ERROR = "node each_text__1 failed: there is no text to count, and nobody knows why that should be so"


def drawn(listing: Listing, width: int, *, is_terminal: bool = True) -> list[str]:
    screen = Console(file=StringIO(), width=width, force_terminal=is_terminal, highlight=False, color_system=None)
    listing.print(screen)
    assert isinstance(screen.file, StringIO)
    return screen.file.getvalue().splitlines()


def jobs(workflow: str = "words", error: str = ERROR) -> Listing:
    listing = Listing(("JOB", "WORKFLOW", "STATUS", "SUBMITTED", "TIME"), note="ERROR", folds=("WORKFLOW",))
    listing.add(JOB, workflow, "[red]✗ failed[/]", "2026-01-31 12:00:00", "1 h 23 min", note=error)
    return listing


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120, 200])
@pytest.mark.parametrize("workflow", ["words", "a_workflow_whose_name_is_much_longer_than_any_column_may_be"])
def test_ids_and_status_are_never_truncated(width: int, workflow: str) -> None:
    lines = drawn(jobs(workflow), width)
    assert lines[1].startswith(JOB)
    assert "✗ failed" in lines[1]
    assert "2026-01-31 12:00:00" in "\n".join(lines)


@pytest.mark.parametrize("width", [80, 100, 120])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    assert max(map(len, drawn(jobs("a_workflow_of_forty_characters_and_more"), width))) <= width


@pytest.mark.parametrize("width", [80, 100])
def test_an_error_that_does_not_fit_is_printed_below_its_row(width: int) -> None:
    head, row, *below = drawn(jobs(), width)
    assert "ERROR" not in head
    assert row.endswith("1 h 23 min")
    assert " ".join(line.strip() for line in below) == ERROR


def test_an_error_that_fits_is_printed_in_its_row_and_wraps() -> None:
    head, row, second = drawn(jobs(), 130)
    assert head.endswith("ERROR")
    assert row.partition("1 h 23 min")[2].strip() + " " + second.strip() == ERROR


def test_a_long_error_is_truncated_after_three_lines() -> None:
    lines = drawn(jobs(error="word " * 200), 80)
    assert len(lines) == 5
    assert lines[-1].endswith("…")


def test_a_long_name_wraps() -> None:
    name = "a_workflow_of_forty_characters_and_more"
    _, row, second, *_ = drawn(jobs(name), 80)
    assert row.split()[1] + second.split()[0] == name


def test_columns_that_do_not_fit_are_printed_below_the_row() -> None:
    listing = Listing(("SCHEDULE", "RULE", "STATE", "NEXT"), fixed=2)
    listing.add("nightly", "0 3 * * *", "active", "2026-01-31 12:00:00")
    assert drawn(listing, 30) == [
        "SCHEDULE  RULE       STATE",
        "nightly   0 3 * * *  active",
        "    next 2026-01-31 12:00:00",
    ]


def test_a_column_without_any_notes_is_left_out_where_its_title_does_not_fit() -> None:
    width = max(map(len, drawn(jobs(error=""), 200)[1:])) + 3
    head, row = drawn(jobs(error=""), width)
    assert "ERR" not in head
    assert row.endswith("1 h 23 min")


def test_outside_a_terminal_a_row_is_one_plain_line() -> None:
    head, row = drawn(jobs(), 10_000, is_terminal=False)
    assert head.split() == ["JOB", "WORKFLOW", "STATUS", "SUBMITTED", "TIME", "ERROR"]
    assert row.split()[:3] == [JOB, "words", "failed"]
    assert row.endswith(ERROR)
