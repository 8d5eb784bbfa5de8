from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from dagmaster.cli.job_watch import node_view
from dagmaster.cli.live import live_view, plain_lines, render
from dagmaster.cli.progress import FanView, JobView, NodeView, Outlook
from dagmaster.ids import JobId
from dagmaster.model.outcome import NO_CHILDREN, children_of, outcome_of
from dagmaster.model.progress import JobSnapshot, NodeSnapshot
from dagmaster.model.states import JobStatus, NodeStatus

NOW = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)


def node(name: str, status: NodeStatus, **more: object) -> NodeView:
    started = NOW - timedelta(seconds=2) if status not in (NodeStatus.PENDING, NodeStatus.SKIPPED) else None
    ended = NOW if status in (NodeStatus.COMPLETED, NodeStatus.FAILED, NodeStatus.SKIPPED) else None
    fan = more.get("fan")
    children = children_of(fan.counts, {}) if isinstance(fan, FanView) else NO_CHILDREN
    view = NodeView(name, status, attempts=4, started_at=started, completed_at=ended, now=NOW)
    return replace(view, outcome=outcome_of(status, children), **more)  # type: ignore[arg-type]


def job(*nodes: NodeView, status: JobStatus = JobStatus.RUNNING) -> JobView:
    return JobView(JobId(2**60), "demo", status, nodes, seconds=4.2)


def rendered(view: JobView, width: int = 100, height: int = 30) -> list[str]:
    screen = Console(file=StringIO(), width=width, height=height, force_terminal=False)
    screen.print(render(view, width, height))
    assert isinstance(screen.file, StringIO)
    return [line.rstrip() for line in screen.file.getvalue().splitlines()]


FAN = FanView({NodeStatus.COMPLETED: 120, NodeStatus.RUNNING: 16, NodeStatus.READY: 60, NodeStatus.FAILED: 4}, 7)
EVERYTHING = (
    node("prepare", NodeStatus.COMPLETED),
    node("broken", NodeStatus.FAILED, error="it broke\nbadly"),
    node("crunch", NodeStatus.COMPLETED, fan=FAN),
    node("again", NodeStatus.READY, attempt=2, started_at=None, not_before=NOW + timedelta(seconds=3)),
    node("left_out", NodeStatus.SKIPPED),
    node("report", NodeStatus.PENDING),
)


def test_each_node_has_a_symbol_its_state_and_its_duration() -> None:
    lines = rendered(job(*EVERYTHING))
    assert lines[0] == f" ● demo   job {2**60}   running   4.2 s"
    assert lines[2].split() == ["✓", "prepare", "completed", "2", "s"]
    assert lines[3].split(maxsplit=5) == ["✗", "broken", "failed", "2", "s", "it broke"]
    assert lines[5].split(maxsplit=3) == ["↻", "again", "retrying", "attempt 2 of 4 in 3 s"]
    assert lines[6].split() == ["–", "left_out", "skipped"]
    assert lines[7].split() == ["○", "report", "pending"]


def test_the_duration_of_a_long_node_is_shown_in_full() -> None:
    long = node("long", NodeStatus.COMPLETED, started_at=NOW - timedelta(minutes=59, seconds=59))
    assert rendered(job(long))[2].endswith("completed  59 min 59 s")


def test_a_fan_out_has_a_progress_bar_and_the_duration_of_its_children() -> None:
    [line] = [line for line in rendered(job(*EVERYTHING)) if "crunch" in line]
    assert line.split(maxsplit=5)[:3] == ["●", "crunch", "running"]
    assert "━" in line
    assert line.endswith("120/200 · 16 running · 4 failed · 7 retried")


def test_a_fan_outs_duration_includes_its_last_child() -> None:
    fan = FanView({NodeStatus.COMPLETED: 3}, last_ended_at=NOW + timedelta(seconds=8))
    ended = node("crunch", NodeStatus.COMPLETED, fan=fan)
    assert (ended.shown_status, ended.seconds) == (NodeStatus.COMPLETED, 10)


def test_a_fan_outs_progress_counts_all_items_not_only_created_children() -> None:
    fan = FanView({NodeStatus.COMPLETED: 120, NodeStatus.RUNNING: 16}, items=1000)
    [line] = [line for line in rendered(job(node("crunch", NodeStatus.RUNNING, fan=fan))) if "crunch" in line]
    assert line.endswith("120/1,000 · 16 running")
    all_made = FanView({NodeStatus.COMPLETED: 136}, items=1000)
    assert all_made.is_open


def test_the_headline_shows_progress_and_the_estimated_time_left() -> None:
    ahead = Outlook(42.0, NOW, NOW + timedelta(seconds=170), "history")
    assert rendered(replace(job(), outlook=ahead))[0].endswith("4.2 s   42.0 %   about 3 min left")
    assert rendered(replace(job(), outlook=Outlook(0.0, NOW)))[0].endswith("4.2 s   0.0 %")
    ended = job(status=JobStatus.FAILED)
    assert rendered(replace(ended, outlook=ahead)) == rendered(ended)


@pytest.mark.parametrize(
    "seconds, words",
    [
        (14, "10 s"),
        (54.9, "50 s"),
        (55, "1 min"),
        (89, "1 min"),
        (3569, "59 min"),
        (3571, "1 h"),
        (9000, "2 h 30 min"),
    ],
)
def test_an_estimate_is_rounded(seconds: float, words: str) -> None:
    ends_at = NOW + timedelta(seconds=seconds)
    assert str(Outlook(7.25, NOW, ends_at, "history")) == f"7.2 %, about {words} left"
    assert Outlook(7.25, NOW, ends_at, "so_far").left == f"perhaps {words} left"


@pytest.mark.parametrize("seconds", [-1, 0, 9.9])
def test_short_remaining_times_are_not_counted_in_seconds(seconds: float) -> None:
    assert Outlook(99.0, NOW, NOW + timedelta(seconds=seconds), "history").left == "a few seconds left"


@pytest.mark.parametrize("width", [20, 40, 60, 80, 100, 200])
def test_lines_are_not_wrapped(width: int) -> None:
    view = job(*EVERYTHING, node("a_name_of_forty_eight_characters_which_is_the_most", NodeStatus.RUNNING))
    lines = rendered(view, width)
    assert max(map(len, lines)) <= width
    assert len(lines) == 2 + len(view.nodes) + 1


def test_active_nodes_are_shown_first_when_space_is_short() -> None:
    done = [node(f"done_{n}", NodeStatus.COMPLETED) for n in range(50)]
    waiting = [node(f"waiting_{n}", NodeStatus.PENDING) for n in range(50)]
    lines = rendered(job(*done, node("now", NodeStatus.RUNNING), *waiting), height=20)
    assert len(lines) <= 20
    assert any("now" in line for line in lines)
    assert any("done_49" in line for line in lines)
    assert any("waiting_0" in line for line in lines)
    assert lines[-2] == "    … and 44 completed, 44 pending"


def test_the_live_view_draws_on_a_terminal() -> None:
    screen = Console(file=StringIO(), width=80, height=24, force_terminal=True)
    with live_view(screen) as show:
        show(job(node("a", NodeStatus.RUNNING)))
        show(job(node("a", NodeStatus.COMPLETED), status=JobStatus.COMPLETED))
    assert isinstance(screen.file, StringIO)
    assert "completed" in screen.file.getvalue()


# Without a terminal


def lines_of(views: Sequence[JobView], capsys: pytest.CaptureFixture[str]) -> list[str]:
    with plain_lines() as show:
        for view in views:
            show(view)
    return capsys.readouterr().out.splitlines()


def test_each_change_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    running, done = node("a", NodeStatus.RUNNING), node("a", NodeStatus.COMPLETED)
    views = [job(node("a", NodeStatus.PENDING)), job(running), job(running), job(done), job(done)]
    assert lines_of(views, capsys) == ["a: running", "a: completed (2 s)"]


def test_retries_and_failures_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    retrying = node("a", NodeStatus.READY, attempt=2)
    failed = node("a", NodeStatus.FAILED, attempt=4, error="it broke")
    assert lines_of([job(retrying), job(failed)], capsys) == [
        "a: retrying, attempt 2 of 4",
        "a: failed: it broke (2 s)",
    ]


def test_a_large_fan_out_prints_only_quarters(capsys: pytest.CaptureFixture[str]) -> None:
    def fan(done: int) -> JobView:
        counts: dict[str, int] = {NodeStatus.COMPLETED: done, NodeStatus.RUNNING: 100 - done}
        return job(node("a", NodeStatus.COMPLETED, fan=FanView(counts, last_ended_at=NOW)))

    assert lines_of([fan(done) for done in range(101)], capsys) == [
        "a: 0 % of 100 done",
        "a: 25 % of 100 done",
        "a: 50 % of 100 done",
        "a: 75 % of 100 done",
        "a: completed (2 s)",
    ]


def test_a_node_keeps_the_state_of_its_row_when_a_later_read_differs():
    now = datetime(2026, 1, 1, tzinfo=UTC)
    row: Any = {
        "node_id": "add",
        "status": "dispatched",
        "retry_count": 0,
        "max_retries": 0,
        **dict.fromkeys(("last_error", "not_before", "started_at", "completed_at", "ended_by")),
    }
    ahead = NodeSnapshot(NodeStatus.COMPLETED, started_at=now, completed_at=now)
    view = node_view(row, JobSnapshot(JobStatus.RUNNING, now, {"add": ahead}))
    assert view.shown_status == "dispatched"
