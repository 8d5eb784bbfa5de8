"""Schedules start one job for each time, across concurrent and killed orchestrators."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from fleet import fleet, graph, rows, task

from dagmaster.errors import Conflict, Invalid, UnknownSchedule
from dagmaster.model.graph import Graph
from dagmaster.orchestrator.schedules import POLL_SECONDS, Scheduling
from dagmaster.store.connect import Connection, connect, opened
from dagmaster.store.doctor import examine
from dagmaster.store.retention import read_limits, remove_old
from dagmaster.store.schedule_runs import backfill, claim_due, start_due, trigger
from dagmaster.store.schedules import (
    get_schedule,
    list_schedules,
    pause_schedule,
    resume_schedule,
    schedule_counts,
    sync_schedules,
)

THRESHOLD = 30.0
JOBS = "SELECT schedule_id, scheduled_for, input_params, metadata FROM dagapp.dag_jobs ORDER BY scheduled_for"


def scheduled(schedule: Any, workflow_id: str = "nightly", **fields: Any) -> Graph:
    return graph({"work": task("echo", "END")}, workflow_id, start="work", schedule=schedule, **fields)


async def keep(dsn: str, *graphs: Graph, due_at: datetime | None = None) -> None:
    """Store the schedules with this next time."""
    async with opened(dsn, application="test") as conn:
        await sync_schedules(conn, graphs)
        if due_at is not None:
            await conn.execute(b"UPDATE dagapp.dag_schedules SET next_at = $1", [due_at])


async def look(dsn: str) -> None:
    async with opened(dsn, application="test") as conn:
        await Scheduling(threshold_seconds=THRESHOLD).run_once(conn)


async def events(dsn: str, kind: str) -> list[dict[str, Any]]:
    return await rows(
        dsn,
        "SELECT job_id, event_status::text AS status, event_data AS data, error_message AS error "
        "FROM dagapp.dag_job_events WHERE event_type::text = %s ORDER BY event_id",
        kind,
    )


def hour_ago(hours: float = 1) -> datetime:
    """On the hour, as for an hourly schedule."""
    return datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(hours=hours)


def daily(at: datetime) -> str:
    """A rule with this time whose next time is far away, even if the hour changes during the test."""
    return f"0 {at.hour} * * *"


async def test_a_job_starts_on_schedule_and_records_its_schedule(dsn: str) -> None:
    definition = scheduled(
        {"every": "1s", "inputs": {"a": "x"}, "time_input": "at"}, inputs={"a": "string", "at": "string"}
    )
    async with fleet(dsn) as running:
        await running.orchestrator()
        await running.worker()
        await keep(dsn, definition)
        await running.until("SELECT count(*) >= 2 AS ok FROM dagapp.dag_jobs WHERE status = 'completed'")
        async with opened(dsn, application="test") as conn:
            await pause_schedule(conn, "nightly", actor=None)
        jobs = await rows(dsn, JOBS)
    assert {job["schedule_id"] for job in jobs} == {"nightly"}
    scheduled_for = jobs[0]["scheduled_for"].astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    assert jobs[0]["input_params"] == {"a": "x", "at": scheduled_for}
    assert jobs[0]["metadata"] == {"schedule_id": "nightly", "scheduled_for": scheduled_for}
    fired = await events(dsn, "schedule_fired")
    assert fired[0]["data"]["scheduled_for"] == scheduled_for
    assert 0 <= fired[0]["data"]["late_seconds"] < 60
    assert len({job["scheduled_for"] for job in jobs}) == len(jobs) == len(fired)


async def test_three_orchestrators_start_each_scheduled_job_once(dsn: str) -> None:
    names = [f"w{number}" for number in range(10)]
    began = hour_ago(3)
    async with fleet(dsn) as running:
        await keep(dsn, *(scheduled({"cron": "0 * * * *", "catchup": "all"}, name) for name in names), due_at=began)
        await asyncio.gather(*(running.orchestrator() for _ in range(3)))
        await running.until("SELECT bool_and(next_at > now()) AS ok FROM dagapp.dag_schedules")
        jobs = await rows(dsn, JOBS)
    times = {began + timedelta(hours=number) for number in range(4)}
    runs = [(job["schedule_id"], job["scheduled_for"]) for job in jobs]
    assert len(runs) == len(set(runs))
    assert {(name, at) for name in names for at in times} <= set(runs)
    assert len(runs) <= len(names) * 5  # The hour may have changed meanwhile.


async def test_concurrent_chores_start_one_job(dsn: str) -> None:
    at = hour_ago(0)
    await keep(dsn, scheduled(daily(at)), due_at=at)
    await asyncio.gather(*(look(dsn) for _ in range(8)))
    assert len(await rows(dsn, JOBS)) == 1


@pytest.mark.parametrize(("catchup", "started", "missed"), [("none", 0, 4), ("last", 1, 3), ("all", 4, 0)])
async def test_missed_runs_are_started_as_catchup_says(dsn: str, catchup: str, started: int, missed: int) -> None:
    now = datetime.now(UTC)
    # Times that this test's clock cannot reach: every six hours, the latest of them hours ago.
    hour = (now - timedelta(hours=2)).hour
    began = (now - timedelta(hours=2, days=3)).replace(minute=0, second=0, microsecond=0)
    await keep(dsn, scheduled({"cron": f"0 {hour} * * *", "catchup": catchup}), due_at=began)
    await look(dsn)
    await look(dsn)
    jobs = await rows(dsn, JOBS)
    assert [job["scheduled_for"] for job in jobs] == [began + timedelta(days=day) for day in range(4)][4 - started :]
    missed_events = await events(dsn, "schedule_missed")
    assert [(event["job_id"], event["data"]["count"]) for event in missed_events] == ([(0, missed)] if missed else [])
    [row] = await rows(dsn, "SELECT next_at, last_at FROM dagapp.dag_schedules")
    assert row["next_at"] == began + timedelta(days=4)
    assert row["last_at"] == (jobs[-1]["scheduled_for"] if jobs else None)


async def test_an_aborted_start_leaves_no_job_and_is_repeated(dsn: str) -> None:
    at = hour_ago(0)
    await keep(dsn, scheduled(daily(at)), due_at=at)
    dying = await connect(dsn, application="test")
    with pytest.raises(psycopg.OperationalError):
        async with dying, dying.transaction():
            row = await claim_due(dying, [])
            assert row is not None
            await start_due(dying, row, threshold_seconds=THRESHOLD)
            await look(dsn)
            assert await rows(dsn, JOBS) == []
            await rows(dsn, "SELECT pg_terminate_backend(%s)", dying.info.backend_pid)
            await dying.execute(b"SELECT 1")
    await look(dsn)
    assert [job["scheduled_for"] for job in await rows(dsn, JOBS)] == [at]


async def test_schedules_of_a_killed_orchestrator_are_run_by_others(dsn: str) -> None:
    async with fleet(dsn) as running:
        first = await running.orchestrator()
        await first.kill()
        await keep(dsn, scheduled("0 * * * *"), due_at=hour_ago(0))
        await running.orchestrator()
        await running.until("SELECT count(*) = 1 AS ok FROM dagapp.dag_jobs")


async def test_a_scheduled_time_gets_at_most_one_job(dsn: str) -> None:
    """The key is unique even if the schedule is set back and its inputs have changed."""
    at = hour_ago(0)
    await keep(dsn, scheduled({"cron": daily(at), "inputs": {"a": "x"}}, inputs={"a": "string"}), due_at=at)
    await look(dsn)
    await keep(dsn, scheduled({"cron": daily(at), "inputs": {"a": "y"}}, inputs={"a": "string"}), due_at=at)
    await look(dsn)
    assert [job["input_params"] for job in await rows(dsn, JOBS)] == [{"a": "x"}]
    assert len(await events(dsn, "schedule_fired")) == 1


async def test_a_paused_schedule_starts_nothing_and_does_not_catch_up(dsn: str) -> None:
    await keep(dsn, scheduled({"cron": "0 * * * *", "catchup": "all"}), due_at=hour_ago(5))
    async with opened(dsn, application="test") as conn:
        assert (await pause_schedule(conn, "nightly", actor="ada"))["paused_by"] == "ada"
        assert (await pause_schedule(conn, "nightly", actor="bob"))["paused_by"] == "ada"
        await look(dsn)
        assert await rows(dsn, JOBS) == []
        resumed = await resume_schedule(conn, "nightly", actor="ada")
        assert resumed["paused_at"] is None
        assert resumed["next_at"] > resumed["now"]
    commands = [event["data"]["command"] for event in await events(dsn, "command")]
    assert commands == ["schedules.sync", "schedules.pause", "schedules.pause", "schedules.resume"]


async def test_a_schedule_that_cannot_start_records_an_error_and_does_not_stop_the_others(dsn: str) -> None:
    at = hour_ago(0)
    await keep(dsn, scheduled(daily(at), "bad"), scheduled(daily(at), "good"), due_at=at)
    await rows(dsn, "DELETE FROM dagapp.dag_workflows WHERE workflow_id = 'bad' RETURNING 1")
    await look(dsn)
    assert [job["schedule_id"] for job in await rows(dsn, JOBS)] == ["good"]
    [missed] = await events(dsn, "schedule_missed")
    assert missed["status"] == "failure"
    assert missed["data"]["schedule_id"] == "bad"
    assert "is not in dag_workflows" in missed["error"]
    [counts] = await rows(dsn, "SELECT count(*) FROM dagapp.dag_schedules WHERE next_at > now() AND paused_at IS NULL")
    assert counts["count"] == 2


async def test_an_unreadable_schedule_is_paused(dsn: str) -> None:
    await keep(dsn, scheduled("0 * * * *"), due_at=hour_ago(0))
    await rows(dsn, "UPDATE dagapp.dag_schedules SET cron = '?', workflow_hash = '?' RETURNING 1")
    await look(dsn)
    [row] = await rows(dsn, "SELECT paused_by, paused_at IS NOT NULL AS is_paused FROM dagapp.dag_schedules")
    assert row == {"paused_by": "dagmaster", "is_paused": True}


async def test_an_unreadable_schedule_is_listed_with_the_others(dsn: str) -> None:
    """A timezone that another machine lacks, or a rule of a newer version."""
    await keep(dsn, scheduled("0 * * * *", "bad"), scheduled("0 * * * *", "good"))
    await rows(dsn, "UPDATE dagapp.dag_schedules SET timezone = 'Mars/Olympus' WHERE schedule_id = 'bad' RETURNING 1")
    async with opened(dsn, application="test") as conn:
        bad, good = await list_schedules(conn)
        assert (bad["rule"], bad["next_times"], len(good["next_times"])) == ("0 * * * *", [], 5)
        assert (await pause_schedule(conn, "bad", actor=None))["paused_at"] is not None
        with pytest.raises(Conflict, match=r"Mars/Olympus.*schedules sync"):
            await resume_schedule(conn, "bad", actor=None)


async def test_the_doctor_reports_a_schedule_that_starts_nothing(dsn: str) -> None:
    await keep(dsn, scheduled("0 * * * *", "bad"), scheduled("0 * * * *", "good"), due_at=hour_ago(0))
    await rows(dsn, "UPDATE dagapp.dag_schedules SET workflow_hash = 'gone' WHERE schedule_id = 'bad' RETURNING 1")
    await look(dsn)
    async with opened(dsn, application="test") as conn:
        [finding] = await examine(conn, recheck_seconds=0)
        assert finding.name == "failing_schedules"
        [bad] = finding.examples
        assert bad["schedule_id"] == "bad" and "not in dag_workflows" in bad["error_message"]
        await sync_schedules(conn, [scheduled("0 * * * *", "bad")])
        await conn.execute(b"UPDATE dagapp.dag_schedules SET next_at = $1", [hour_ago(0)])
        await look(dsn)
        assert await examine(conn, recheck_seconds=0) == []


# As declared by the workflows.


async def next_at(conn: Connection) -> datetime:
    at: datetime = (await get_schedule(conn, "nightly"))["next_at"]
    return at


async def test_a_changed_workflow_changes_its_schedule_and_keeps_the_pause(dsn: str) -> None:
    async with opened(dsn, application="test") as conn:
        assert (await sync_schedules(conn, [scheduled("0 6 * * *")])).added == ("nightly",)
        assert (await sync_schedules(conn, [scheduled("0 6 * * *")])).is_empty
        await pause_schedule(conn, "nightly", actor="ada")
        assert (await sync_schedules(conn, [scheduled("0 7 * * *")])).changed == ("nightly",)
        row = await get_schedule(conn, "nightly")
        assert (row["cron"], row["paused_by"], row["next_at"].hour) == ("0 7 * * *", "ada", 7)


async def test_a_due_run_is_kept_when_other_fields_change(dsn: str) -> None:
    async with opened(dsn, application="test") as conn:
        due_at = hour_ago(3)
        await keep(dsn, scheduled("0 6 * * *"), due_at=due_at)
        await sync_schedules(conn, [scheduled("0 6 * * *", description="better now")])
        assert await next_at(conn) == due_at
        await sync_schedules(conn, [scheduled("5 6 * * *", description="better now")])
        assert await next_at(conn) > datetime.now(UTC)


async def test_only_ended_or_pruned_schedules_are_removed(dsn: str) -> None:
    async with opened(dsn, application="test") as conn:
        await sync_schedules(conn, [scheduled("@daily", name) for name in ("a", "b", "c")])
        assert (await sync_schedules(conn, [scheduled("@daily", "a")])).is_empty
        assert (await sync_schedules(conn, [scheduled("@daily", "a")], ended=["b"])).removed == ("b",)
        assert (await sync_schedules(conn, [scheduled("@daily", "a")], prune=True)).removed == ("c",)
        assert [row["schedule_id"] for row in await list_schedules(conn)] == ["a"]


async def test_retention_keeps_the_definitions_of_schedules(dsn: str) -> None:
    async with opened(dsn, application="test") as conn:
        await sync_schedules(conn, [scheduled("@daily")])
        await conn.execute(b"UPDATE dagapp.dag_workflows SET created_at = now() - interval '9 days'")
        await remove_old(conn, await read_limits(conn, 1))
        await trigger(conn, "nightly", actor=None, threshold_seconds=THRESHOLD)
    assert len(await rows(dsn, JOBS)) == 1


# Manual runs.


async def test_a_schedule_can_be_triggered_manually(dsn: str) -> None:
    async with opened(dsn, application="test") as conn:
        await sync_schedules(conn, [scheduled("@daily")])
        await pause_schedule(conn, "nightly", actor=None)
        first, at = await trigger(conn, "nightly", actor="ada", threshold_seconds=THRESHOLD)
        second, _ = await trigger(conn, "nightly", actor="ada", threshold_seconds=THRESHOLD)
        assert first.job_id != second.job_id
        with pytest.raises(UnknownSchedule, match="schedules sync"):
            await trigger(conn, "unknown", actor="ada", threshold_seconds=THRESHOLD)
    fired = await events(dsn, "schedule_fired")
    assert [(event["data"]["actor"], event["data"]["is_asked_for"]) for event in fired] == [("ada", True)] * 2
    assert (await rows(dsn, JOBS))[0]["scheduled_for"] == at


def january(day: int) -> datetime:
    return datetime(2026, 1, day, tzinfo=UTC)


async def test_a_backfill_starts_missing_runs_and_none_twice(dsn: str) -> None:
    async with opened(dsn, application="test") as conn:
        await sync_schedules(conn, [scheduled("0 6 * * *")])

        async def fill(start: int, end: int, **options: Any) -> tuple[int, int, int, int]:
            done = await backfill(conn, "nightly", january(start), january(end), threshold_seconds=THRESHOLD, **options)
            return done.times, done.existing, done.submitted, done.left

        assert await fill(1, 8, dry_run=True) == (7, 0, 0, 7)
        assert await fill(3, 5) == (2, 0, 2, 0)
        assert await fill(1, 8, most=3) == (7, 2, 3, 2)
        assert await fill(1, 8) == (7, 5, 2, 0)
        assert await fill(1, 8) == (7, 7, 0, 0)
    jobs = await rows(dsn, JOBS)
    assert [job["scheduled_for"] for job in jobs] == [january(day) + timedelta(hours=6) for day in range(1, 8)]


async def test_a_backfill_ends_at_the_present(dsn: str) -> None:
    async with opened(dsn, application="test") as conn:
        await sync_schedules(conn, [scheduled("0 * * * *"), scheduled({"every": "1s"}, "busy")])
        far = datetime.now(UTC) + timedelta(days=1000)
        done = await backfill(conn, "nightly", hour_ago(2), far, threshold_seconds=THRESHOLD)
        assert done.submitted in (3, 4)
        with pytest.raises(Invalid, match="more than 100,000 times"):
            await backfill(conn, "busy", january(1), january(30), threshold_seconds=THRESHOLD)


async def test_late_schedules_are_counted(dsn: str) -> None:
    await keep(dsn, scheduled("@daily", "a"), scheduled("@daily", "b"), due_at=hour_ago(2))
    async with opened(dsn, application="test") as conn:
        await pause_schedule(conn, "b", actor=None)
        assert await schedule_counts(conn) == {"active": 1, "paused": 1, "due": 1, "late": 1}


async def test_the_chore_wakes_for_the_next_due_time(dsn: str) -> None:
    """A check shortly before a schedule is due is repeated at that time."""
    await keep(dsn, scheduled({"every": "1s"}))
    async with opened(dsn, application="test") as conn:
        sooner = None
        while sooner is None:  # On a busy machine the next run may be due again when the check ends.
            sooner = await Scheduling(threshold_seconds=THRESHOLD).run_once(conn)
        assert 0 < sooner < POLL_SECONDS
        await asyncio.sleep(sooner)
        await Scheduling(threshold_seconds=THRESHOLD).run_once(conn)
    assert await rows(dsn, JOBS) != []
