"""Retention beside running jobs, by orchestrators, and by `prune`."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from command_line import call
from expired_jobs import ended, exported, left, remove, remove_alone
from fleet import fleet, rows, single, wait_until

from dagmaster.orchestrator.maintenance import RetentionOptions
from dagmaster.store import retention
from dagmaster.store.archive import Archive
from dagmaster.store.connect import Connection


async def test_jobs_run_while_old_ones_are_removed(
    dsn: str, conn: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "JOBS_AT_ONCE", 2)
    await ended(dsn, times=20)
    async with fleet(dsn) as running:
        await running.orchestrator()
        await running.worker()
        await remove_alone(conn)  # The orchestrator tries it a moment after its start.
        removal = asyncio.create_task(remove(conn, export=Archive(tmp_path).export))
        new: list[int] = []
        while not removal.done():
            new.append((await running.run(single()))["job_id"])
        await running.completed(*new)
    assert removal.result().jobs == 20
    assert await left(dsn) == set(new)


async def test_orchestrators_remove_old_jobs(dsn: str, tmp_path: Path) -> None:
    job_ids = await ended(dsn, times=3)
    options = RetentionOptions(30, tmp_path)
    async with fleet(dsn) as running:
        for _ in range(2):
            await running.orchestrator(retention=options, retention_seconds=0.05, settle_seconds=0)
        await running.until("SELECT count(*) = 0 AS ok FROM dagapp.dag_jobs")
        await running.until("SELECT count(*) > 0 AS ok FROM dagapp.dag_job_events WHERE job_id = 0")
    [event] = await rows(dsn, "SELECT * FROM dagapp.dag_job_events WHERE job_id = 0")
    assert event["event_data"]["command"] == "jobs.prune"
    assert (event["event_data"]["actor"], event["event_data"]["jobs"]) == ("retention", 3)
    assert sorted(row["job_id"] for row in exported(tmp_path, "jobs")) == sorted(job_ids)


async def test_an_unwritable_archive_does_not_stop_an_orchestrator(
    dsn: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await ended(dsn)
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    async with fleet(dsn) as running:
        await running.orchestrator(retention=RetentionOptions(30, blocked), retention_seconds=0.05, settle_seconds=0)
        await running.worker()
        await wait_until(lambda: "cannot remove old jobs" in caplog.text)
        await running.completed(await running.submit(single()))


# On the command line


@pytest.fixture
async def old(dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DAGMASTER_DATABASE_URL", dsn)
    return [*await ended(dsn, times=2), *await ended(dsn, single(workflow_id="other"), days_ago=90)]


async def prune(*args: object) -> Any:
    return await asyncio.to_thread(call, "prune", *args)


async def test_prune_requires_an_age(old: list[int], dsn: str) -> None:
    done = await prune()
    assert done.code == 2
    assert "--days" in done.err
    assert await left(dsn) == set(old)


async def test_a_dry_run_removes_nothing(old: list[int], dsn: str) -> None:
    summary = (await prune("--days", 30, "--dry-run", "--json")).json
    assert [(row["workflow_id"], row["jobs"]) for row in summary] == [("other", 1), ("single", 2)]
    assert summary[1]["nodes"] == 6
    result = await prune("--days", 60, "--dry-run")
    assert "other" in result.out and "single" not in result.out
    assert "1 job would be removed" in result.err
    assert await left(dsn) == set(old)


async def test_prune_removes_old_jobs_and_records_it(old: list[int], dsn: str, tmp_path: Path) -> None:
    done = await prune("--days", 30, "--workflow", "single", "--archive", tmp_path / "kept", "--by", "ada", "--json")
    assert done.code == 0, done.err
    assert (done.json["jobs"], done.json["nodes"]) == (2, 6)
    assert await left(dsn) == {old[2]}
    assert len(exported(tmp_path / "kept", "jobs")) == 2
    [event] = await rows(dsn, "SELECT event_data FROM dagapp.dag_job_events WHERE job_id = 0")
    assert (event["event_data"]["actor"], event["event_data"]["jobs"]) == ("ada", 2)
    assert (await prune("--days", 30)).out.startswith("removed 1 job,")
    assert (await prune("--days", 30, "--dry-run")).err.startswith("no jobs are old enough")
