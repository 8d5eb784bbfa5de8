"""Stalls, stuck tasks, backpressure and statistics of an orchestrator."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from fleet import NEVER, Fleet, OrchestratorRole, fan, fleet, retry, rows, single, wait_until

from dagmaster.orchestrator.watch import BackPressure, CycleReport, Stall, WatchOptions
from dagmaster.store.connect import Connection, opened
from dagmaster.store.submission import NewJob
from dagmaster.store.tasks import warn_of_stuck_tasks

SOON = WatchOptions(stall_after_seconds=0.2, stuck_after_seconds=NEVER)
AT_ONCE = WatchOptions(stall_after_seconds=0, stuck_after_seconds=0, cycle_event_seconds=0)
# The chores of an orchestrator run when it starts, or whenever a busy machine lets them.
FINDS_NOTHING = WatchOptions(
    stall_after_seconds=10**6, stuck_after_seconds=10**6, cycle_event_seconds=10**6, resume_queue_depth=0
)


async def event_data(dsn: str, event_type: str) -> list[dict[str, Any]]:
    selected = await rows(
        dsn,
        "SELECT * FROM dagapp.dag_job_events WHERE job_id = 0 AND event_type::text = %s ORDER BY event_id",
        event_type,
    )
    return [row["event_data"] for row in selected]


@asynccontextmanager
async def watched(dsn: str, **functions: Any) -> AsyncIterator[tuple[Fleet, OrchestratorRole, Connection]]:
    """An orchestrator whose own watch chores find nothing: the test runs them."""
    async with fleet(dsn, **functions) as running, opened(dsn, application="test") as conn:
        role = await running.orchestrator(back_pressure_seconds=NEVER, watch=FINDS_NOTHING)
        yield running, role, conn


async def until_it_waits(running: Fleet, tasks: int = 1) -> None:
    await running.until("SELECT count(*) = %s AS ok FROM dagapp.dag_tasks_waiting", lambda: [tasks])
    await running.until("SELECT count(*) = 0 AS ok FROM dagapp.dag_mailbox")


# Stalls.


async def test_a_stall_is_reported_once_until_progress(dsn: str) -> None:
    """In one event, or in two if a check comes between the jobs."""
    reported = """SELECT count(*) = %s AS ok FROM dagapp.dag_job_events, jsonb_array_elements(event_data -> 'job_ids')
                  WHERE event_type = 'orchestrator_stall'"""
    async with fleet(dsn) as running:
        role = await running.orchestrator(watch=SOON)
        job_ids = await running.submit_all([NewJob(single(), {}) for _ in range(2)])
        expected = sorted(str(job_id) for job_id in job_ids)
        await running.until(reported, lambda: [2])
        events = await event_data(dsn, "orchestrator_stall")
        assert {event["instance_id"] for event in events} == {role.id}
        assert sorted(job_id for event in events for job_id in event["job_ids"]) == expected
        async with opened(dsn, application="test") as conn:
            another = Stall(role.instance, AT_ONCE)
            await another.run_once(conn)
            await another.run_once(conn)
        [new] = (await event_data(dsn, "orchestrator_stall"))[len(events) :]
        assert sorted(new["job_ids"]) == expected
        third = await running.submit(single())
        await running.until(reported, lambda: [5])
        assert (await event_data(dsn, "orchestrator_stall"))[-1]["job_ids"] == [str(third)], "the others were reported"


async def test_without_jobs_there_is_no_stall(dsn: str) -> None:
    async with watched(dsn) as (_, role, conn):
        await Stall(role.instance, AT_ONCE).run_once(conn)
        assert await event_data(dsn, "orchestrator_stall") == []


async def test_a_task_within_its_timeout_is_no_stall_and_hides_none(dsn: str) -> None:
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def long(ctx: Any) -> dict[str, Any]:
        begun.set()
        await may_end.wait()
        return {}

    async with watched(dsn, long=long) as (running, role, conn):
        await running.worker(queues=("slow",))
        stuck = await running.submit(single())
        await until_it_waits(running)
        job_id = await running.submit(single("long", queue="slow"))
        await asyncio.wait_for(begun.wait(), 60)
        await running.until(
            "SELECT count(*) = 1 AS ok FROM dagapp.dag_node_states WHERE job_id = %s AND status = 'running'",
            lambda: [job_id],
        )
        await Stall(role.instance, AT_ONCE).run_once(conn)
        [data] = await event_data(dsn, "orchestrator_stall")
        assert data["job_ids"] == [str(stuck)], "a task at work does not hide the job that nobody serves"
        may_end.set()
        await running.completed(job_id)


async def test_a_job_waiting_for_a_retry_is_no_stall(dsn: str) -> None:
    async with watched(dsn) as (running, role, conn):
        await running.worker()
        job_id = await running.submit(single("fail", retry=retry(1, 60)))
        await running.until(
            "SELECT count(*) = 1 AS ok FROM dagapp.dag_node_states WHERE job_id = %s AND not_before IS NOT NULL",
            lambda: [job_id],
        )
        await Stall(role.instance, AT_ONCE).run_once(conn)
        assert await event_data(dsn, "orchestrator_stall") == []


async def test_a_paused_job_is_no_stall(dsn: str) -> None:
    async with watched(dsn) as (running, role, conn):
        job_id = await running.submit(single())
        await until_it_waits(running)
        role.instance.jobs.get(job_id).state.paused_at = datetime.now(UTC)
        await Stall(role.instance, AT_ONCE).run_once(conn)
        assert await event_data(dsn, "orchestrator_stall") == []


# Stuck tasks.


async def test_a_stuck_task_is_reported_once_by_all_orchestrators(dsn: str) -> None:
    async with watched(dsn) as (running, _, conn), opened(dsn, application="test") as other:
        await running.worker(queues=("q",))
        unknown = await running.submit(single("unheard_of"))
        alone = await running.submit(single(queue="lonely"))
        await until_it_waits(running, 2)
        await rows(dsn, "UPDATE dagapp.dag_tasks_waiting SET dispatched_at = dispatched_at - interval '1 hour'")
        for _ in range(3):
            await asyncio.gather(*(warn_of_stuck_tasks(connection, after_seconds=60) for connection in (conn, other)))
        [warning] = await running.events(unknown, "node_warning")
        assert warning["task_id"] == f"{unknown}_work_0"
        data = warning["event_data"]
        assert (data["queue"], data["handler"]) == ("q", "unheard_of")
        assert (data["queue_is_consumed"], data["handler_is_known"]) == (True, False)
        [warning] = await running.events(alone, "node_warning")
        data = warning["event_data"]
        assert (data["queue_is_consumed"], data["handler_is_known"]) == (False, False)


async def test_held_and_recent_tasks_are_not_stuck(dsn: str) -> None:
    async with watched(dsn) as (running, _, conn):
        job_id = await running.submit(single())
        await until_it_waits(running)
        assert await warn_of_stuck_tasks(conn, after_seconds=60) == []
        # Made older: the orchestrator's clock may be a little ahead of the database's.
        old = "dispatched_at = dispatched_at - interval '1 hour'"
        await rows(dsn, f"UPDATE dagapp.dag_tasks_waiting SET held = true, {old}")
        assert await warn_of_stuck_tasks(conn, after_seconds=60) == []
        await rows(dsn, "UPDATE dagapp.dag_tasks_waiting SET held = false")
        assert await warn_of_stuck_tasks(conn, after_seconds=60) == [f"{job_id}_work_0"]


# Back-pressure.


async def test_a_full_queue_receives_nothing_until_it_is_nearly_empty(dsn: str) -> None:
    options = WatchOptions(max_queue_depth=5, resume_queue_depth=3)
    async with watched(dsn) as (running, role, conn):
        pressure = BackPressure(role.instance, options)
        crowd = await running.submit(fan(), {"items": list(range(8))})
        await until_it_waits(running, 8)
        await pressure.run_once(conn)
        await pressure.run_once(conn)
        late = await running.submit(single())
        elsewhere = await running.submit(single(queue="other"))
        await until_it_waits(running, 9)
        assert (await running.statuses(late))["work"] == "ready"
        assert (await running.statuses(elsewhere))["work"] == "dispatched"
        await rows(dsn, "UPDATE dagapp.dag_tasks_waiting SET held = true WHERE node_id LIKE '%%4'")
        await pressure.run_once(conn)
        assert role.instance.closed_queues == {"q"}, "7 is above the depth at which it opens"
        await rows(dsn, "UPDATE dagapp.dag_tasks_waiting SET held = false")
        await running.worker(queues=("q", "other"))
        await running.completed(crowd, elsewhere)
        await pressure.run_once(conn)
        await running.completed(late)
        states = [
            (data["queue"], data["state"], data["depth"]) for data in await event_data(dsn, "orchestrator_backpressure")
        ]
        assert states == [("q", "closed", 8), ("q", "open", 0)]


async def test_the_chore_applies_and_releases_backpressure(dsn: str) -> None:
    async with fleet(dsn) as running:
        options = WatchOptions(max_queue_depth=5, resume_queue_depth=3)
        await running.orchestrator(back_pressure_seconds=0.05, watch=options)
        job_ids = [await running.submit(fan(), {"items": list(range(8))})]
        noted = "SELECT count(*) = %s AS ok FROM dagapp.dag_job_events WHERE event_type = 'orchestrator_backpressure'"
        await running.until(noted, lambda: [1])
        job_ids.append(await running.submit(single()))
        await running.worker()
        await running.completed(*job_ids)


# Statistics.


async def test_an_orchestrators_statistics_are_in_its_row(dsn: str) -> None:
    async with fleet(dsn) as running:
        await running.orchestrator()
        await running.worker()
        good = await running.submit(single())
        bad = await running.submit(single("fail"))
        await running.ended(good, bad)
        await running.until(
            "SELECT jsonb_array_length(stats -> 'completions') = 1 AND jsonb_array_length(stats -> 'failures') = 1 "
            "AS ok FROM dagapp.dag_orchestrators"
        )
        stats = await running.value("SELECT stats FROM dagapp.dag_orchestrators")
    assert stats["completions"][0]["job_id"] == str(good)
    assert stats["failures"][0]["job_id"] == str(bad)
    assert stats["failing_handlers"]["fail"]["failed"] == stats["failing_queues"]["q"]["failed"] == 1
    assert stats["workflows"]["single"]["success_rate"] == 0.5
    assert stats["current_phase"] in ("idle", "polling_results", "evaluating_jobs", "dispatching")
    assert stats["current_cycle_id"] == stats["cycles"] > 0
    assert stats["throughput_per_second"] > 0 and stats["error_rate"] == 0.5
    assert stats["cycle_duration_avg_ms"] > 0
    assert {"started_at", "cycle_started_at", "processing_job_id", "last_cycle_at", "last_error"} <= set(stats)


# The cycle report.


async def test_the_cycle_report_writes_one_event_per_hour(dsn: str) -> None:
    async with watched(dsn) as (running, role, conn):
        await running.worker()
        report = CycleReport(role.instance, AT_ONCE)
        await running.run(single())
        await wait_until(lambda: role.instance.stats.jobs_ended == 1)  # It counts after the commit.
        await report.run_once(conn)
        await report.run_once(conn)
        first, second = await event_data(dsn, "orchestrator_cycle")
        assert first["instance_id"] == role.id
        assert (first["jobs_completed"], first["tasks_completed"], first["errors"]) == (1, 1, 0)
        assert first["cycles"] > 0
        assert second["jobs_completed"] == 0
        await CycleReport(role.instance, WatchOptions()).run_once(conn)
        assert len(await event_data(dsn, "orchestrator_cycle")) == 2, "the hour is not over"


@pytest.mark.parametrize(("after", "look"), [(300, 30), (40, 10), (0.01, 0.05)])
def test_the_poll_interval_follows_the_stall_limit(after: float, look: float) -> None:
    assert WatchOptions(stall_after_seconds=after).check_seconds == look
