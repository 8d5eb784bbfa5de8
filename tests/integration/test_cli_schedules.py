"""Schedules on the command line, on the database and over HTTP."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import call, write_workflow
from fleet import rows
from serving import server

WORKFLOW = """\
workflow_id: {name}
schedule: {schedule}
nodes:
  work: {{type: task, handler: echo, queue: q}}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "workflows"
    path.mkdir()
    write(path, "nightly", '"0 6 * * *"')
    return path


def write(folder: Path, name: str, schedule: str) -> None:
    write_workflow(folder, WORKFLOW.format(name=name, schedule=schedule), f"{name}.yaml")


@pytest.fixture(params=["database", "server"])
def place(request: pytest.FixtureRequest, dsn: str, folder: Path) -> Iterator[list[str]]:
    """The options that select database or server."""
    if request.param == "database":
        assert call("schedules", "sync", "--database-url", dsn).out == "added nightly\n"
        yield ["--database-url", dsn]
        return
    with server(dsn, folder, works=False) as host:
        yield ["--url", host.url]


def scheduled_jobs(dsn: str) -> list[str]:
    selected = asyncio.run(
        rows(dsn, "SELECT job_id FROM dagapp.dag_jobs WHERE schedule_id = 'nightly' ORDER BY job_id")
    )
    return [str(row["job_id"]) for row in selected]


def test_schedules_are_listed(place: list[str]) -> None:
    result = call("schedules", *place)
    assert (result.code, result.err) == (0, "")
    assert result.out.splitlines()[1].split()[:8] == ["nightly", "0", "6", "*", "*", "*", "UTC", "last"]
    [record] = call("schedules", "list", "--json", *place).json
    assert (record["schedule_id"], record["rule"], len(record["next_times"])) == ("nightly", "0 6 * * *", 5)


def test_a_schedule_can_be_paused_resumed_and_triggered(dsn: str, place: list[str]) -> None:
    assert call("schedules", "pause", "nightly", *place).out == "Paused schedule nightly\n"
    assert "paused" in call("schedules", *place).out
    assert call("schedules", "resume", "nightly", *place).out.startswith("Resumed schedule nightly; next run at 20")
    done = call("schedules", "trigger", "nightly", *place)
    assert [done.out.strip()] == scheduled_jobs(dsn)
    unknown = call("schedules", "pause", "nigtly", *place)
    assert unknown.code == 2
    assert "there is no schedule 'nigtly'" in unknown.err


def test_a_backfill_prints_what_it_started(dsn: str, place: list[str]) -> None:
    january = ["backfill", "nightly", "--from", "2026-01-01", "--to", "2026-02-01"]
    assert call(*january, "--dry-run", *place).out == "31 jobs would be submitted, 0 already existed\n"
    assert call(*january, "--max", 1, *place).out == "1 job submitted, 0 already existed, 30 remaining\n"
    assert call(*january, *place).out == "30 jobs submitted, 1 already existed\n"
    again = call(*january, "--json", *place).json
    assert (again["times"], again["submitted"], again["existing"], again["job_ids"]) == (31, 0, 31, [])
    assert len(scheduled_jobs(dsn)) == 31


@pytest.mark.parametrize(
    ("times", "reason"),
    [
        (["--from", "soon", "--to", "2026-01-01"], "--from must be a date or time such as 2026-01-31"),
        (["--from", "2026-02-01", "--to", "2026-01-01"], "it must start after 1970, and end after its start"),
    ],
)
def test_an_invalid_range_is_refused(place: list[str], times: list[str], reason: str) -> None:
    refused = call("backfill", "nightly", *times, *place)
    assert refused.code == 2
    assert reason in refused.err


def test_sync_reads_the_schedules_from_the_workflow_folder(folder: Path, place: list[str]) -> None:
    assert call("schedules", "sync", *place).out == "no changes\n"
    write(folder, "nightly", "{every: 15m}")
    write(folder, "weekly", "'0 0 * * 0'")
    assert call("schedules", "sync", *place).out == "added weekly\nchanged nightly\n"
    (folder / "weekly.yaml").unlink()
    assert call("schedules", "sync", *place).out == "no changes\n"
    assert call("schedules", "sync", "--prune", "--json", *place).json["removed"] == ["weekly"]


def test_the_schedule_of_a_broken_workflow_stays_unchanged(folder: Path, place: list[str]) -> None:
    """Even when others are pruned: its id cannot be read from the broken file."""
    write(folder, "nightly", '"61 6 * * *"')
    assert call("schedules", "sync", *place).out == "no changes\n"
    refused = call("schedules", "sync", "--prune", *place)
    assert refused.code != 0
    assert "nightly.yaml" in refused.err
    assert "0 6 * * *" in call("schedules", *place).out


def test_the_schedule_of_a_workflow_with_an_unknown_child_stays_unchanged(folder: Path, place: list[str]) -> None:
    text = "workflow_id: nightly\nschedule: '0 7 * * *'\nnodes:\n  sub: {type: workflow, workflow: gone}\n"
    write_workflow(folder, text, "nightly.yaml")
    assert call("schedules", "sync", "--prune", *place).out == "no changes\n"
    assert "0 6 * * *" in call("schedules", *place).out


def test_a_server_records_the_key_as_the_actor(dsn: str, folder: Path) -> None:
    with server(dsn, folder, works=False) as host:
        for command in (["pause", "nightly"], ["trigger", "nightly"], ["sync"]):
            refused = call("schedules", *command, "--by", "ada", "--url", host.url)
            assert refused.code == 2
            assert "--by cannot be used with --url" in refused.err


def test_an_empty_list_explains_how_to_add_a_schedule(
    dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "add `schedule:` to a workflow" in call("schedules", "--database-url", dsn).err
