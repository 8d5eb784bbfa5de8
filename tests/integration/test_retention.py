import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson
import pyarrow.parquet
import pytest
from command_line import call
from fleet import fan, fleet, graph, rows, single, task

from dagmaster.authoring.yaml import QueueRules, parse_workflow, read_workflow
from dagmaster.errors import Conflict
from dagmaster.model.graph import Graph
from dagmaster.orchestrator.retention import RetentionOptions
from dagmaster.store import archive, jobs, retention
from dagmaster.store.archive import KINDS, Archive
from dagmaster.store.connect import Connection, opened
from dagmaster.store.retention import Removed, read_limits, remove_old

TABLES = ("dag_jobs", "dag_node_states", "dag_task_results", "dag_job_events", "dag_checkpoints", "dag_callbacks")
RETENTION_IS_FREE = "SELECT count(*) = 0 AS ok FROM pg_locks WHERE locktype = 'advisory' AND classid = 7233"
SOURCES = dict(zip(KINDS, TABLES, strict=False))


@pytest.fixture
async def conn(dsn: str) -> AsyncIterator[Connection]:
    async with opened(dsn, application="test") as opened_conn:
        yield opened_conn


async def ended(
    dsn: str, what: Graph | None = None, *, days_ago: float = 40.0, times: int = 1, **inputs: Any
) -> list[int]:
    """Jobs that ran and ended some days ago."""
    async with fleet(dsn) as running:
        await running.orchestrator()
        await running.worker()
        new = [jobs.NewJob(what or single(), inputs) for _ in range(times)]
        job_ids = await running.submit_all(new)
        await running.ended(*job_ids)
        await running.is_clean()
    await age(dsn, job_ids, days_ago)
    return job_ids


async def age(dsn: str, job_ids: list[int], days: float) -> None:
    for table, columns in (
        ("dag_jobs", ("created_at", "started_at", "completed_at")),
        ("dag_node_states", ("created_at", "dispatched_at", "started_at", "completed_at")),
        ("dag_job_events", ("created_at",)),
    ):
        changes = ", ".join(f"{name} = {name} - make_interval(secs => {86400 * days})" for name in columns)
        await rows(dsn, f"UPDATE dagapp.{table} SET {changes} WHERE job_id = ANY(%s)", job_ids)


async def make_day(dsn: str, days_ago: int) -> str:
    """The timeline's partition of that day."""
    low = datetime.now(UTC).date() - timedelta(days=days_ago)
    await rows(
        dsn,
        f"""CREATE TABLE dagapp.dag_job_events_{low:%Y%m%d} PARTITION OF dagapp.dag_job_events
            FOR VALUES FROM ('{low} 00:00+00') TO ('{low + timedelta(days=1)} 00:00+00')""",
    )
    return f"{low:%Y%m%d}"


async def remove(conn: Connection, days: float | None = 30.0, **options: Any) -> Removed:
    return await remove_old(conn, await read_limits(conn, days), **options)


async def counts(dsn: str) -> dict[str, int]:
    """Rows of jobs, without the system's own timeline."""
    found = {}
    for table in TABLES:
        [row] = await rows(dsn, f"SELECT count(*) AS n FROM dagapp.{table} WHERE job_id <> 0")
        found[table] = row["n"]
    return found


async def left(dsn: str) -> set[int]:
    return {row["job_id"] for row in await rows(dsn, "SELECT job_id FROM dagapp.dag_jobs")}


def kept_for(days: float, workflow_id: str) -> Graph:
    return graph({"work": task("echo", "END")}, workflow_id, start="work", retention_days=days)


# What goes


async def test_an_old_job_goes_with_all_that_belongs_to_it(dsn: str, conn: Connection) -> None:
    [job_id] = await ended(dsn)
    await rows(
        dsn,
        """INSERT INTO dagapp.dag_checkpoints (checkpoint_id, job_id, node_id, task_id, phase_name)
           VALUES (1, %s, 'work', 't', 'p')""",
        job_id,
    )
    await rows(dsn, "INSERT INTO dagapp.dag_callbacks (job_id, url, job_status) VALUES (%s, '', 'failed')", job_id)
    before = await counts(dsn)
    assert all(before.values())
    removed = await remove(conn)
    assert await counts(dsn) == dict.fromkeys(TABLES, 0)
    assert (removed.jobs, removed.nodes, removed.results) == (1, before["dag_node_states"], before["dag_task_results"])
    assert removed.events == before["dag_job_events"]


async def test_what_is_young_live_or_about_to_be_reopened_stays(dsn: str, conn: Connection) -> None:
    [young] = await ended(dsn, days_ago=20)
    [reopening, running, gone] = await ended(dsn, times=3)
    await rows(dsn, "UPDATE dagapp.dag_jobs SET owner_id = 'somebody' WHERE job_id = %s", reopening)
    await rows(dsn, "UPDATE dagapp.dag_jobs SET status = 'running', owner_id = 'x' WHERE job_id = %s", running)
    nodes = await rows(dsn, "SELECT * FROM dagapp.dag_node_states WHERE job_id <> %s ORDER BY job_id, node_id", gone)
    assert (await remove(conn)).jobs == 1
    assert await left(dsn) == {young, reopening, running}
    assert await rows(dsn, "SELECT * FROM dagapp.dag_node_states ORDER BY job_id, node_id") == nodes


async def test_without_a_limit_everything_stays(dsn: str, conn: Connection) -> None:
    job_ids = await ended(dsn, days_ago=4000)
    assert (await remove(conn, None)).jobs == 0
    assert await left(dsn) == set(job_ids)


async def test_the_retention_of_a_workflow_wins(dsn: str, conn: Connection) -> None:
    long, usual = await ended(dsn, kept_for(365, "long")), await ended(dsn)
    short = await ended(dsn, kept_for(1, "short"), days_ago=2)
    assert (await remove(conn, None)).jobs == 1
    assert await left(dsn) == {*long, *usual}
    assert (await remove(conn, 30)).jobs == 1
    assert await left(dsn) == set(long)
    assert short[0] not in await left(dsn)


async def test_many_jobs_go_in_several_batches(dsn: str, conn: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "JOBS_AT_ONCE", 3)
    await ended(dsn, times=8)
    progress: list[int] = []
    removed = await remove(conn, on_progress=lambda so_far: progress.append(so_far.jobs))
    assert (removed.jobs, progress) == (8, [3, 6, 8])


async def test_a_large_job_goes_in_slices_and_its_row_last(
    dsn: str, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "ROWS_AT_ONCE", 7)
    await ended(dsn, fan(), items=list(range(30)))
    before = await counts(dsn)
    repeat, seen = retention._repeat, []

    async def watch(conn: Connection, name: str, values: Any) -> int:
        seen.append(len(await left(dsn)))
        return await repeat(conn, name, values)

    monkeypatch.setattr(retention, "_repeat", watch)
    removed = await remove(conn)
    assert seen == [1, 1, 1, 1, 0]  # The last are results that were kept for other jobs.
    assert await counts(dsn) == dict.fromkeys(TABLES, 0)
    assert (removed.nodes, removed.events) == (before["dag_node_states"], before["dag_job_events"])


async def test_a_removal_that_was_interrupted_goes_on(
    dsn: str, conn: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "ROWS_AT_ONCE", 7)
    [large] = await ended(dsn, fan(), items=list(range(30)))
    before = await counts(dsn)
    files = Archive(tmp_path)
    repeat = retention._repeat

    async def fail(conn: Connection, name: str, values: Any) -> int:
        if name == "remove_some_nodes":
            raise InterruptedError
        return await repeat(conn, name, values)

    monkeypatch.setattr(retention, "_repeat", fail)
    with pytest.raises(InterruptedError):
        await remove(conn, export=files.export)
    assert await left(dsn) == {large}
    monkeypatch.setattr(retention, "_repeat", repeat)
    await remove(conn, export=files.export)
    assert await left(dsn) == set()
    assert len(exported(tmp_path, "results")) == before["dag_task_results"]
    assert len(exported(tmp_path, "nodes")) == before["dag_node_states"]


async def test_two_at_once_are_one_too_many(dsn: str, conn: Connection) -> None:
    async with opened(dsn, application="other") as other, retention._alone(other):
        with pytest.raises(Conflict, match="another process"):
            await remove(conn)
    assert (await remove(conn)).jobs == 0


async def test_a_job_that_somebody_holds_is_left_for_the_next_time(dsn: str, conn: Connection) -> None:
    held, free = await ended(dsn, times=2)
    async with opened(dsn, application="holder") as holder, holder.transaction():
        await holder.execute(b"SELECT FROM dagapp.dag_jobs WHERE job_id = $1 FOR UPDATE", [held])
        assert (await remove(conn)).jobs == 1
        assert await left(dsn) == {held}
    assert (await remove(conn)).jobs == 1
    assert free not in await left(dsn)


async def test_a_job_that_was_reopened_after_it_was_marked_stays(dsn: str, conn: Connection, tmp_path: Path) -> None:
    kept, gone = await ended(dsn, times=2)

    async def reopen(*_: Any) -> None:
        await rows(dsn, "UPDATE dagapp.dag_jobs SET status = 'running', completed_at = NULL WHERE job_id = %s", kept)

    assert (await remove(conn, export=reopen)).jobs == 1
    assert await left(dsn) == {kept}
    await rows(dsn, "UPDATE dagapp.dag_jobs SET status = 'failed', completed_at = now() WHERE job_id = %s", kept)
    assert (await remove(conn)).jobs == 0  # its old mark is not for this end
    await rows(dsn, "UPDATE dagapp.dag_jobs SET completed_at = now() - interval '31 days'")
    assert (await remove(conn)).jobs == 1
    assert gone not in await left(dsn)


# The timeline and the definitions


async def test_days_of_the_timeline_that_nobody_needs_are_dropped_whole(dsn: str, conn: Connection) -> None:
    old, kept = await make_day(dsn, 40), await make_day(dsn, 20)
    await ended(dsn, days_ago=40)
    await ended(dsn, days_ago=20)
    removed = await remove(conn)
    assert (removed.jobs, removed.event_days, removed.events) == (1, 1, 0)
    [row] = await rows(
        dsn,
        f"""SELECT to_regclass('dagapp.dag_job_events_{old}') IS NULL AS old_is_gone,
                   to_regclass('dagapp.dag_job_events_{kept}') IS NOT NULL AS other_is_kept""",
    )
    assert all(row.values())
    assert (await counts(dsn))["dag_job_events"] > 0


async def test_what_the_system_says_of_itself_is_kept_as_long_as_jobs(dsn: str, conn: Connection) -> None:
    day = await make_day(dsn, 10)
    await rows(
        dsn,
        f"""INSERT INTO dagapp.dag_job_events (job_id, event_type, event_status, source_app, created_at)
            VALUES (0, 'command', 'info', 'cli', '{day} 12:00+00')""",
    )
    await ended(dsn, kept_for(1, "short"), days_ago=10)
    assert (await remove(conn, None)).jobs == 1
    assert (await remove(conn, 30)).event_days == 0
    assert (await remove(conn, 5)).event_days == 1


async def test_a_definition_goes_with_its_last_job_but_not_on_its_first_day(dsn: str, conn: Connection) -> None:
    await ended(dsn, single(workflow_id="gone"))
    await ended(dsn, single(workflow_id="kept"), days_ago=0)
    await remove(conn)
    assert await pinned(dsn) == {"gone", "kept"}
    await rows(dsn, "UPDATE dagapp.dag_workflows SET created_at = now() - interval '2 days'")
    assert (await remove(conn)).definitions == 1
    assert await pinned(dsn) == {"kept"}


async def test_a_submission_under_way_keeps_its_definition(dsn: str, conn: Connection) -> None:
    what = single(workflow_id="wanted")
    await ended(dsn, what)
    await rows(dsn, "UPDATE dagapp.dag_workflows SET created_at = now() - interval '2 days'")
    async with opened(dsn, application="submitter") as submitter:
        async with submitter.transaction():
            await jobs.submit(submitter, jobs.NewJob(what, {}), threshold_seconds=30)
            assert (await remove(conn)).definitions == 0
        assert (await remove(conn)).definitions == 0
    assert await pinned(dsn) == {"wanted"}


async def test_a_submission_after_the_removal_pins_its_definition_anew(dsn: str, conn: Connection) -> None:
    what = single(workflow_id="wanted")
    await ended(dsn, what)
    await rows(dsn, "UPDATE dagapp.dag_workflows SET created_at = now() - interval '2 days'")
    async with opened(dsn, application="submitter") as submitter:
        async with conn.transaction():
            await retention.run(conn, "hold_submissions")
            new = jobs.NewJob(what, {})
            waiting = asyncio.create_task(jobs.submit(submitter, new, threshold_seconds=30))
            await asyncio.wait([waiting], timeout=0.1)
            assert not waiting.done()
            hashes = {"hashes": [what.workflow.content_hash]}
            assert (await retention.run(conn, "remove_definitions", hashes)).rowcount == 1
        await waiting
    assert await pinned(dsn) == {"wanted"}


async def pinned(dsn: str) -> set[str]:
    return {row["workflow_id"] for row in await rows(dsn, "SELECT workflow_id FROM dagapp.dag_workflows")}


# The archive


def exported(folder: Path, kind: str) -> list[dict[str, Any]]:
    found = []
    for path in sorted((folder / kind).rglob("*.parquet")):
        found += pyarrow.parquet.ParquetFile(path).read().to_pylist()
    return found


def as_written(row: dict[str, Any]) -> dict[str, Any]:
    """JSON as it is in the file, read again."""
    names = (
        "input_params",
        "result_data",
        "metadata",
        "output",
        "checkpoint_data",
        "event_data",
        "state_data",
        "signals",
    )
    return {name: orjson.loads(value) if name in names and value else value for name, value in row.items()}


async def test_the_files_say_what_the_rows_said(dsn: str, conn: Connection, tmp_path: Path) -> None:
    [job_id] = await ended(dsn, fan(), items=[{"a": 1.5}, "ü", None])
    await rows(
        dsn,
        "INSERT INTO dagapp.dag_checkpoints (checkpoint_id, job_id, node_id, task_id, phase_name, state_data) "
        """VALUES (1, %s, 'spread__0', 'a task', 'read', '{"rows": 3}')""",
        job_id,
    )
    rows_before = {kind: await rows(dsn, f"SELECT * FROM dagapp.{table}") for kind, table in SOURCES.items()}
    await remove(conn, export=Archive(tmp_path).export)
    assert await left(dsn) == set()
    day = rows_before["jobs"][0]["completed_at"].astimezone(UTC).date()
    for kind, before in rows_before.items():
        [path] = (tmp_path / kind).iterdir()
        assert path.name == f"date={day}"
        [name] = path.iterdir()
        found = [as_written(row) for row in exported(tmp_path, kind)]
        assert sorted(found, key=str) == sorted(before, key=str), kind
        schema = pyarrow.parquet.read_schema(name)
        assert str(schema.field("job_id").type) == "int64"
        assert str(schema.field("reported_at" if kind == "results" else "created_at").type) == "timestamp[us, tz=UTC]"


async def test_jobs_of_several_days_are_in_the_folders_of_their_days(
    dsn: str, conn: Connection, tmp_path: Path
) -> None:
    await ended(dsn, days_ago=40)
    await ended(dsn, days_ago=41)
    await remove(conn, export=Archive(tmp_path).export)
    assert len(list((tmp_path / "jobs").iterdir())) == 2
    for path in (tmp_path / "jobs").rglob("*.parquet"):
        for row in pyarrow.parquet.ParquetFile(path).read().to_pylist():
            assert path.parent.name == f"date={row['completed_at'].date()}"


async def test_an_interruption_after_the_export_leaves_each_job_in_the_archive_once(
    dsn: str, conn: Connection, tmp_path: Path
) -> None:
    first = await ended(dsn, times=2)
    files = Archive(tmp_path)

    async def killed(conn: Connection, removal: retention.Removal) -> None:
        await files.export(conn, removal)
        raise InterruptedError

    with pytest.raises(InterruptedError):
        await remove(conn, export=killed)
    assert await left(dsn) == set(first)
    names = sorted(path.name for path in (tmp_path / "jobs").rglob("*.parquet"))
    more = await ended(dsn, days_ago=50)  # would otherwise have gone with the first ones
    await remove(conn, export=files.export)
    assert await left(dsn) == set()
    assert sorted(row["job_id"] for row in exported(tmp_path, "jobs")) == sorted([*first, *more])
    assert set(names) < {path.name for path in (tmp_path / "jobs").rglob("*.parquet")}
    assert not list(tmp_path.rglob("*.partial"))


async def test_what_somebody_wanted_to_export_does_not_go_without(dsn: str, conn: Connection, tmp_path: Path) -> None:
    job_ids = await ended(dsn)

    async def killed(*_: Any) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        await remove(conn, export=killed)
    assert (await remove(conn)).jobs == 0
    assert await left(dsn) == set(job_ids)
    assert (await remove(conn, export=Archive(tmp_path).export)).jobs == 1
    assert len(exported(tmp_path, "jobs")) == 1


async def test_nothing_is_removed_that_could_not_be_exported(dsn: str, conn: Connection, tmp_path: Path) -> None:
    job_ids = await ended(dsn)
    (tmp_path / "jobs").write_text("not a folder")
    before = await counts(dsn)
    with pytest.raises(OSError):
        await remove(conn, export=Archive(tmp_path).export)
    assert await left(dsn) == set(job_ids)
    assert await counts(dsn) == before


async def test_a_disk_that_is_full_half_way_removes_nothing_and_the_next_try_works(
    dsn: str, conn: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "ROWS_AT_ONCE", 4)
    job_ids = await ended(dsn, fan(), items=list(range(10)))
    before = await counts(dsn)
    write, written = Archive._write, []

    def fill(self: Archive, writer: Any, some: Any, schema: Any) -> None:
        written.append(len(some))
        if len(written) == 3:
            raise OSError("no space left on device")
        write(self, writer, some, schema)

    monkeypatch.setattr(Archive, "_write", fill)
    with pytest.raises(OSError, match="no space"):
        await remove(conn, export=Archive(tmp_path).export)
    assert (await left(dsn), await counts(dsn)) == (set(job_ids), before)
    assert (await remove(conn, export=Archive(tmp_path).export)).jobs == 1
    assert len(exported(tmp_path, "nodes")) == before["dag_node_states"]


# Beside the rest


async def test_jobs_are_submitted_and_run_while_old_ones_are_removed(
    dsn: str, conn: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "JOBS_AT_ONCE", 2)
    await ended(dsn, times=20)
    async with fleet(dsn) as running:
        await running.orchestrator()
        await running.worker()
        await running.until(RETENTION_IS_FREE)  # the orchestrator looks when it starts
        removal = asyncio.create_task(remove(conn, export=Archive(tmp_path).export))
        new: list[int] = []
        while not removal.done():
            new.append((await running.run(single()))["job_id"])
        await running.completed(*new)
    assert removal.result().jobs == 20
    assert await left(dsn) == set(new)


async def test_the_orchestrators_remove_what_is_old(dsn: str, tmp_path: Path) -> None:
    job_ids = await ended(dsn, times=3)
    options = RetentionOptions(30, tmp_path)
    async with fleet(dsn) as running:
        for _ in range(2):
            await running.orchestrator(retention=options, retention_seconds=0.05)
        await running.until("SELECT count(*) = 0 AS ok FROM dagapp.dag_jobs")
        await running.until("SELECT count(*) > 0 AS ok FROM dagapp.dag_job_events WHERE job_id = 0")
    [event] = await rows(dsn, "SELECT * FROM dagapp.dag_job_events WHERE job_id = 0")
    assert event["event_data"]["command"] == "jobs.prune"
    assert (event["event_data"]["actor"], event["event_data"]["jobs"]) == ("retention", 3)
    assert sorted(row["job_id"] for row in exported(tmp_path, "jobs")) == sorted(job_ids)


async def test_an_archive_that_cannot_be_written_does_not_stop_an_orchestrator(
    dsn: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await ended(dsn)
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    async with fleet(dsn) as running:
        await running.orchestrator(retention=RetentionOptions(30, blocked), retention_seconds=0.05)
        await running.worker()
        await running.completed(await running.submit(single()))
    assert "old jobs could not be removed" in caplog.text


# In a workflow's file


def test_a_workflow_says_how_long_its_jobs_are_kept() -> None:
    text = "workflow_id: w\nretention_days: {}\nnodes:\n  a: {{handler: echo, queue: q}}\n"
    rules = QueueRules(None, None)
    assert parse_workflow(text.format("7.5"), queues=rules).retention_days == 7.5
    for wrong in ("0", "-1", "soon", "true", "[1]", "40000"):
        workflow, [problem] = read_workflow(text.format(wrong), queues=rules)
        assert workflow is None
        assert "'retention_days' must be a number above 0" in str(problem)
        assert problem.line == 2


def test_a_definition_without_it_keeps_the_hash_that_it_was_pinned_under() -> None:
    workflow = single().workflow
    assert b"retention_days" not in workflow.to_json()
    assert workflow.model_copy(update={"retention_days": 1.0}).content_hash != workflow.content_hash


# On the command line


@pytest.fixture
async def old(dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DAGMASTER_DATABASE_URL", dsn)
    return [*await ended(dsn, times=2), *await ended(dsn, single(workflow_id="other"), days_ago=90)]


async def prune(*args: object) -> Any:
    return await asyncio.to_thread(call, "prune", *args)


async def test_prune_needs_to_know_for_how_long(old: list[int], dsn: str) -> None:
    done = await prune()
    assert done.code == 2
    assert "--days" in done.err
    assert await left(dsn) == set(old)


async def test_a_dry_run_only_tells(old: list[int], dsn: str) -> None:
    told = (await prune("--days", 30, "--dry-run", "--json")).json
    assert [(one["workflow_id"], one["jobs"]) for one in told] == [("other", 1), ("single", 2)]
    assert told[1]["nodes"] == 6
    shown = await prune("--days", 60, "--dry-run")
    assert "other" in shown.out and "single" not in shown.out
    assert "1 job would be removed" in shown.err
    assert await left(dsn) == set(old)


async def test_prune_removes_what_it_is_told_and_notes_it(old: list[int], dsn: str, tmp_path: Path) -> None:
    done = await prune("--days", 30, "--workflow", "single", "--archive", tmp_path / "kept", "--by", "ada", "--json")
    assert done.code == 0, done.err
    assert (done.json["jobs"], done.json["nodes"]) == (2, 6)
    assert await left(dsn) == {old[2]}
    assert len(exported(tmp_path / "kept", "jobs")) == 2
    [event] = await rows(dsn, "SELECT event_data FROM dagapp.dag_job_events WHERE job_id = 0")
    assert (event["event_data"]["actor"], event["event_data"]["jobs"]) == ("ada", 2)
    assert (await prune("--days", 30)).out.startswith("removed 1 job,")
    assert (await prune("--days", 30, "--dry-run")).err.startswith("nothing is old enough")
