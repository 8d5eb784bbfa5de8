"""Old jobs are removed with all their rows, their days of the timeline, and unneeded definitions."""

import asyncio
from typing import Any

import pytest
from expired_jobs import TABLES, add_groups, counts, ended, kept_for, left, make_day, remove
from fleet import fan, rows, single

from dagmaster.authoring.yaml import QueueRules, parse_workflow, read_workflow
from dagmaster.errors import Conflict
from dagmaster.store import retention, submission
from dagmaster.store.connect import Connection, opened
from dagmaster.store.statements import run


async def test_an_old_job_is_removed_with_all_its_rows(dsn: str, conn: Connection) -> None:
    [job_id] = await ended(dsn)
    await rows(
        dsn,
        """INSERT INTO dagapp.dag_checkpoints (checkpoint_id, job_id, node_id, task_id, phase_name)
           VALUES (1, %s, 'work', 't', 'p')""",
        job_id,
    )
    await rows(dsn, "INSERT INTO dagapp.dag_callbacks (job_id, url, job_status) VALUES (%s, '', 'failed')", job_id)
    await add_groups(dsn, job_id)
    before = await counts(dsn)
    assert all(before.values())
    removed = await remove(conn)
    assert await counts(dsn) == dict.fromkeys(TABLES, 0)
    assert (removed.jobs, removed.nodes, removed.results) == (1, before["dag_node_states"], before["dag_task_results"])
    assert removed.events == before["dag_job_events"]


async def test_young_live_and_reopening_jobs_are_kept(dsn: str, conn: Connection) -> None:
    [young] = await ended(dsn, days_ago=20)
    [reopening, running, gone] = await ended(dsn, times=3)
    await rows(dsn, "UPDATE dagapp.dag_jobs SET owner_id = 'somebody' WHERE job_id = %s", reopening)
    await rows(dsn, "UPDATE dagapp.dag_jobs SET status = 'running', owner_id = 'x' WHERE job_id = %s", running)
    nodes = await rows(dsn, "SELECT * FROM dagapp.dag_node_states WHERE job_id <> %s ORDER BY job_id, node_id", gone)
    assert (await remove(conn)).jobs == 1
    assert await left(dsn) == {young, reopening, running}
    assert await rows(dsn, "SELECT * FROM dagapp.dag_node_states ORDER BY job_id, node_id") == nodes


async def test_without_a_limit_everything_is_kept(dsn: str, conn: Connection) -> None:
    job_ids = await ended(dsn, days_ago=4000)
    assert (await remove(conn, None)).jobs == 0
    assert await left(dsn) == set(job_ids)


async def test_the_workflows_retention_takes_precedence(dsn: str, conn: Connection) -> None:
    long, usual = await ended(dsn, kept_for(365, "long")), await ended(dsn)
    short = await ended(dsn, kept_for(1, "short"), days_ago=2)
    assert (await remove(conn, None)).jobs == 1
    assert await left(dsn) == {*long, *usual}
    assert (await remove(conn, 30)).jobs == 1
    assert await left(dsn) == set(long)
    assert short[0] not in await left(dsn)


async def test_many_jobs_are_removed_in_several_batches(
    dsn: str, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "JOBS_AT_ONCE", 3)
    await ended(dsn, times=8)
    progress: list[int] = []
    removed = await remove(conn, on_progress=lambda so_far: progress.append(so_far.jobs))
    assert (removed.jobs, progress) == (8, [3, 6, 8])


async def test_a_large_job_is_removed_in_batches_and_its_row_last(
    dsn: str, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "ROWS_AT_ONCE", 7)
    [job_id] = await ended(dsn, fan(), items=list(range(30)))
    await add_groups(dsn, job_id, 20)
    before = await counts(dsn)
    repeat, seen = retention._repeat, []

    async def watch(conn: Connection, name: str, values: Any) -> int:
        seen.append(len(await left(dsn)))
        return await repeat(conn, name, values)

    monkeypatch.setattr(retention, "_repeat", watch)
    removed = await remove(conn)
    assert seen == [1, 1, 1, 1, 1, 1, 0]  # The last ones are cached results.
    assert await counts(dsn) == dict.fromkeys(TABLES, 0)
    assert (removed.nodes, removed.events) == (before["dag_node_states"], before["dag_job_events"])


async def test_two_processes_cannot_remove_at_once(dsn: str, conn: Connection) -> None:
    async with opened(dsn, application="other") as other, retention._alone(other):
        with pytest.raises(Conflict, match="another process"):
            await remove(conn)
    assert (await remove(conn)).jobs == 0


async def test_a_locked_job_is_left_for_the_next_run(dsn: str, conn: Connection) -> None:
    locked, free = await ended(dsn, times=2)
    async with opened(dsn, application="holder") as holder, holder.transaction():
        await holder.execute(b"SELECT FROM dagapp.dag_jobs WHERE job_id = $1 FOR UPDATE", [locked])
        assert (await remove(conn)).jobs == 1
        assert await left(dsn) == {locked}
    assert (await remove(conn)).jobs == 1
    assert free not in await left(dsn)


async def test_a_job_reopened_after_it_was_marked_is_kept(dsn: str, conn: Connection) -> None:
    live, gone = await ended(dsn, times=2)

    async def reopen(*_: Any) -> None:
        await rows(dsn, "UPDATE dagapp.dag_jobs SET status = 'running', completed_at = NULL WHERE job_id = %s", live)

    assert (await remove(conn, export=reopen)).jobs == 1
    assert await left(dsn) == {live}
    await rows(dsn, "UPDATE dagapp.dag_jobs SET status = 'failed', completed_at = now() WHERE job_id = %s", live)
    assert (await remove(conn)).jobs == 0  # Its old mark does not apply to this end.
    await rows(dsn, "UPDATE dagapp.dag_jobs SET completed_at = now() - interval '31 days'")
    assert (await remove(conn)).jobs == 1
    assert gone not in await left(dsn)


# The timeline and the definitions


async def test_unneeded_days_of_the_timeline_are_dropped_as_partitions(dsn: str, conn: Connection) -> None:
    old, recent = await make_day(dsn, 40), await make_day(dsn, 20)
    await ended(dsn, days_ago=40)
    await ended(dsn, days_ago=20)
    removed = await remove(conn)
    assert (removed.jobs, removed.event_days, removed.events) == (1, 1, 0)
    [row] = await rows(
        dsn,
        f"""SELECT to_regclass('dagapp.dag_job_events_{old}') IS NULL AS old_is_gone,
                   to_regclass('dagapp.dag_job_events_{recent}') IS NOT NULL AS other_is_kept""",
    )
    assert all(row.values())
    assert (await counts(dsn))["dag_job_events"] > 0


async def test_system_events_are_kept_as_long_as_jobs(dsn: str, conn: Connection) -> None:
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


async def test_a_definition_is_removed_with_its_last_job_but_not_on_its_first_day(dsn: str, conn: Connection) -> None:
    await ended(dsn, single(workflow_id="gone"))
    await ended(dsn, single(workflow_id="kept"), days_ago=0)
    await remove(conn)
    assert await pinned(dsn) == {"gone", "kept"}
    await rows(dsn, "UPDATE dagapp.dag_workflows SET created_at = now() - interval '2 days'")
    assert (await remove(conn)).definitions == 1
    assert await pinned(dsn) == {"kept"}


async def test_a_submission_in_progress_keeps_its_definition(dsn: str, conn: Connection) -> None:
    definition = single(workflow_id="wanted")
    await ended(dsn, definition)
    await rows(dsn, "UPDATE dagapp.dag_workflows SET created_at = now() - interval '2 days'")
    async with opened(dsn, application="submitter") as submitter:
        async with submitter.transaction():
            await submission.submit(submitter, submission.NewJob(definition, {}), threshold_seconds=30)
            assert (await remove(conn)).definitions == 0
        assert (await remove(conn)).definitions == 0
    assert await pinned(dsn) == {"wanted"}


async def test_a_submission_after_the_removal_pins_its_definition_again(dsn: str, conn: Connection) -> None:
    definition = single(workflow_id="wanted")
    await ended(dsn, definition)
    await rows(dsn, "UPDATE dagapp.dag_workflows SET created_at = now() - interval '2 days'")
    async with opened(dsn, application="submitter") as submitter:
        async with conn.transaction():
            await run(conn, "hold_submissions")
            new = submission.NewJob(definition, {})
            waiting = asyncio.create_task(submission.submit(submitter, new, threshold_seconds=30))
            await asyncio.wait([waiting], timeout=0.1)
            assert not waiting.done()
            hashes = {"hashes": [definition.workflow.content_hash]}
            assert (await run(conn, "remove_definitions", hashes)).rowcount == 1
        await waiting
    assert await pinned(dsn) == {"wanted"}


async def pinned(dsn: str) -> set[str]:
    return {row["workflow_id"] for row in await rows(dsn, "SELECT workflow_id FROM dagapp.dag_workflows")}


# In a workflow file


def test_a_workflow_can_set_its_retention() -> None:
    text = "workflow_id: w\nretention_days: {}\nnodes:\n  a: {{handler: echo, queue: q}}\n"
    rules = QueueRules(None, None)
    assert parse_workflow(text.format("7.5"), queues=rules).retention_days == 7.5
    for wrong in ("0", "-1", "soon", "true", "[1]", "40000"):
        workflow, [problem] = read_workflow(text.format(wrong), queues=rules)
        assert workflow is None
        assert "'retention_days' must be a number above 0" in str(problem)
        assert problem.line == 2


def test_a_definition_without_retention_keeps_its_hash() -> None:
    workflow = single().workflow
    assert b"retention_days" not in workflow.json_definition
    assert workflow.model_copy(update={"retention_days": 1.0}).content_hash != workflow.content_hash
