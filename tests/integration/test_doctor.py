"""Each check finds only its own problem, and a repaired job runs to its end."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from command_line import call
from fleet import Fleet, child, fan, fleet, graph, retry, rows, single, task
from job_owner import Owner, owner

from dagmaster.engine.messages import Load, TaskCompleted, TaskFailed
from dagmaster.model.workflow import FanInNode, FanOutNode
from dagmaster.store.connect import opened
from dagmaster.store.doctor import CHECKS, Finding, Limits, Severity, examine
from dagmaster.store.health import Point, State, _graded, _server, examine_database, health_check

AT_ONCE = Limits(settle_seconds=0, orphan_seconds=30, worker_lost_seconds=30)


# Healthy jobs, held by a passive owner.


def report(job_id: int, node: str = "work", kind: type = TaskCompleted) -> Any:
    content = b"{}" if kind is TaskCompleted else "no luck"
    return kind(node, f"{job_id}_{node}_0", "w", datetime.now(UTC), content)


async def live(job_owner: Owner) -> None:
    await job_owner.submit(single())
    await job_owner.advance(Load())


async def completed(job_owner: Owner) -> None:
    await live(job_owner)
    await job_owner.advance(report(job_owner.job_id))


async def failed(job_owner: Owner) -> None:
    await live(job_owner)
    await job_owner.advance(report(job_owner.job_id, kind=TaskFailed))


async def forgiven(job_owner: Owner) -> None:
    """A completed job with tolerated failures of nodes and of a fan-out's child."""
    nodes: dict[str, Any] = {
        "work": task("echo", "spread", allow_failure=True),
        "spread": FanOutNode(source="{{ [1] }}", task=child(), allow_failure=True, next=("gather",)),
        "gather": FanInNode(next=("END",)),
    }
    await job_owner.submit(graph(nodes, start="work"))
    await job_owner.advance(Load())
    await job_owner.advance(report(job_owner.job_id, kind=TaskFailed))
    await job_owner.advance(report(job_owner.job_id, "spread__0", TaskFailed))


async def fanned(job_owner: Owner) -> None:
    await job_owner.submit(fan(), {"items": [1, 2, 3]})
    await job_owner.advance(Load())


Base = Callable[[Owner], Awaitable[None]]

A_TASK = """
INSERT INTO dag_tasks_{place} (task_id, job_id, node_id, retry_count, queue, priority, job_started_at, handler,
    timeout_seconds, dispatched_at{more})
VALUES ('{{job}}_work_{attempt}', {{job}}, 'work', {attempt}, 'q', 0, now(), 'echo', 60, now(){values})
"""
A_WAITING_TASK = A_TASK.format(place="waiting", attempt=0, more="", values="")
ANOTHER_RUNNING_TASK = A_TASK.format(place="running", attempt=7, more=", worker_id", values=", 'w'")
LONG_AGO = "now() - interval '1 hour'"
A_SCHEDULE = (
    "INSERT INTO dag_schedules (schedule_id, workflow_id, workflow_hash, cron, next_at) "
    "VALUES ('s', 's', 'x', '@daily', {next_at})"
)
A_RESULT = f"""
INSERT INTO dag_task_results (task_id, job_id, node_id, status, output, reported_at)
VALUES ('{{job}}_work_0', {{job}}, 'work', 'completed', '{{{{}}}}', {LONG_AGO})
"""

# For each check: one change that breaks a healthy state.
BREAKS: dict[str, tuple[Base, str]] = {
    "tasks_of_ended_jobs": (completed, A_WAITING_TASK),
    "superseded_tasks": (live, ANOTHER_RUNNING_TASK),
    "lost_tasks": (live, "DELETE FROM dag_tasks_waiting"),
    "lost_runs": (live, "UPDATE dag_node_states SET status = 'running' WHERE node_id = 'work'"),
    "open_nodes_of_ended_jobs": (completed, "UPDATE dag_node_states SET status = 'ready' WHERE node_id = 'END'"),
    "owned_ended_jobs": (completed, "UPDATE dag_jobs SET owner_id = '{owner}'"),
    "jobs_without_owner": (live, f"UPDATE dag_jobs SET owner_id = NULL, updated_at = {LONG_AGO}"),
    "jobs_of_dead_owners": (live, f"UPDATE dag_jobs SET owner_id = 'gone', owner_heartbeat_at = {LONG_AGO}"),
    "finished_live_jobs": (live, "DELETE FROM dag_tasks_waiting; UPDATE dag_node_states SET status = 'completed'"),
    "failed_nodes_of_completed_jobs": (
        completed,
        "UPDATE dag_node_states SET status = 'failed' WHERE node_id = 'work'",
    ),
    "jobs_without_definition": (completed, "DELETE FROM dag_workflows"),
    "torn_fan_outs": (
        fanned,
        "DELETE FROM dag_tasks_waiting WHERE node_id LIKE '%2'; DELETE FROM dag_node_states WHERE fan_out_index = 2",
    ),
    "too_many_attempts": (failed, "UPDATE dag_node_states SET retry_count = 9 WHERE node_id = 'work'"),
    "double_results": (
        completed,
        "INSERT INTO dag_job_events (job_id, node_id, task_id, event_type, event_status, source_app) "
        "SELECT job_id, node_id, task_id, event_type, event_status, source_app FROM dag_job_events "
        "WHERE event_type = 'node_completed' AND node_id = 'work'",
    ),
    "jobs_without_last_event": (failed, "DELETE FROM dag_job_events WHERE event_type = 'job_failed'"),
    "ended_jobs_without_time": (completed, "UPDATE dag_jobs SET completed_at = NULL"),
    "unprocessed_results": (live, A_RESULT),
    "old_mail": (live, f"INSERT INTO dag_mailbox (job_id, kind, created_at) VALUES ({{job}}, 'cancel', {LONG_AGO})"),
    "held_tasks": (live, "UPDATE dag_tasks_waiting SET held = true"),
    "unheld_tasks": (live, "UPDATE dag_jobs SET paused_at = now()"),
    "overdue_callbacks": (
        completed,
        "INSERT INTO dag_callbacks (job_id, url, job_status, next_attempt_at) "
        f"VALUES ({{job}}, 'https://example.com', 'completed', {LONG_AGO})",
    ),
    "schedules_without_next_time": (live, A_SCHEDULE.format(next_at="NULL")),
    "late_schedules": (live, A_SCHEDULE.format(next_at=LONG_AGO)),
    "failing_schedules": (
        live,
        A_SCHEDULE.format(next_at="now() + interval '1 hour'")
        + "; INSERT INTO dag_job_events (job_id, event_type, event_status, event_data, error_message, source_app) "
        "VALUES (0, 'schedule_missed', 'failure', '{{\"schedule_id\": \"s\"}}', 'no luck', 'test')",
    ),
    "silent_workers": (
        live,
        "INSERT INTO dag_workers (worker_id, hostname, pid, host_key, status, queues, concurrency, last_heartbeat) "
        f"VALUES ('w', 'h', 1, 'k', 'active', '{{{{q}}}}', 1, {LONG_AGO})",
    ),
    "stalled_orchestrators": (
        live,
        "INSERT INTO dag_orchestrators (orchestrator_id, hostname, pid, host_key, status, stats) "
        "VALUES ('o', 'h', 1, 'k', 'stalled', '{{\"no_progress_seconds\": 130}}')",
    ),
    "misplaced_events": (
        live,
        "INSERT INTO dag_job_events (job_id, created_at, event_type, event_status, source_app) "
        "VALUES ({job}, now() + interval '7 days', 'job_warning', 'info', 'test')",
    ),
    "missing_partitions": (live, "SELECT 1"),
}


@asynccontextmanager
async def healthy(dsn: str, base: Base) -> AsyncIterator[Owner]:
    async with owner(dsn) as job_owner:
        await base(job_owner)
        await rows(dsn, "DELETE FROM dagapp.dag_mailbox")
        yield job_owner


def change(dsn: str, statements: str, job_owner: Owner) -> None:
    """Without triggers, like a manual change."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("SET session_replication_role = replica; SET search_path = dagapp")
        conn.execute(statements.format(job=job_owner.job_id, owner=job_owner.id))


def without_partition(dsn: str, days_ahead: int) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        [name] = conn.execute(
            "SELECT 'dag_job_events_' || to_char((now() AT TIME ZONE 'UTC')::date + %s::int, 'YYYYMMDD')", [days_ahead]
        ).fetchone()
        conn.execute(f"DROP TABLE IF EXISTS dagapp.{name}")  # The last one is missing if the tests began yesterday.


async def look(dsn: str, **options: Any) -> list[Finding]:
    async with opened(dsn, application="test") as conn:
        return await examine(conn, **{"limits": AT_ONCE, "recheck_seconds": 0.01, **options})


def test_every_check_has_a_test_that_breaks_it() -> None:
    assert [check.name for check in CHECKS] == list(BREAKS)


@pytest.mark.parametrize("base", [live, completed, failed, forgiven, fanned], ids=lambda base: base.__name__)
async def test_a_healthy_job_has_no_findings(dsn: str, base: Base) -> None:
    async with healthy(dsn, base):
        assert await look(dsn) == []


@pytest.mark.parametrize("name", BREAKS)
async def test_broken_rows_are_found_and_repaired(dsn: str, name: str) -> None:
    base, statements = BREAKS[name]
    check = next(check for check in CHECKS if check.name == name)
    async with healthy(dsn, base) as job_owner:
        if name in ("misplaced_events", "missing_partitions"):
            without_partition(dsn, 7 if name == "misplaced_events" else 1)
        change(dsn, statements, job_owner)
        [finding] = await look(dsn)
        assert (finding.name, finding.count, finding.repaired) == (name, 1, 0)
        assert finding.is_open and len(finding.examples) == 1 and "key" not in finding.examples[0]
        [finding] = await look(dsn, repair=True, actor="ann")
        assert finding.repaired == (1 if check.repair else 0)
        assert [left.name for left in await look(dsn)] == ([] if check.repair else [name])
        commands = await rows(dsn, "SELECT event_data FROM dagapp.dag_job_events WHERE event_type = 'command'")
        audit = {"command": "doctor.repair", "check": name, "actor": "ann"}
        assert [row["event_data"] for row in commands] == ([audit] if check.repair else [])


async def test_recent_changes_are_not_findings(dsn: str) -> None:
    async with healthy(dsn, live) as job_owner:
        change(dsn, "DELETE FROM dag_tasks_waiting", job_owner)
        await rows(dsn, "UPDATE dagapp.dag_node_states SET version = version WHERE node_id = 'work'")
        assert await look(dsn, limits=Limits(settle_seconds=60)) == []


async def test_a_finding_that_disappears_is_not_reported(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with healthy(dsn, live) as job_owner:
        pauses = []

        async def repair_meanwhile(seconds: float) -> None:
            pauses.append(seconds)
            change(dsn, A_WAITING_TASK, job_owner)

        monkeypatch.setattr("dagmaster.store.doctor.asyncio", SimpleNamespace(sleep=repair_meanwhile))
        change(dsn, "DELETE FROM dag_tasks_waiting", job_owner)
        assert await look(dsn, recheck_seconds=7.0) == []
        assert pauses == [7.0], "the first run has found it"


# With a fleet that continues repaired jobs.

REPAIRED_BY_HAND = {
    "lost_tasks": "DELETE FROM dag_tasks_waiting",
    "lost_runs": "DELETE FROM dag_tasks_waiting; UPDATE dag_node_states SET status = 'running' WHERE node_id = 'work'",
    "finished_live_jobs": "DELETE FROM dag_tasks_waiting; UPDATE dag_node_states SET status = 'completed'",
    "unprocessed_results": A_RESULT,
    "held_tasks": "UPDATE dag_tasks_waiting SET held = true",
}


@pytest.mark.parametrize("name", REPAIRED_BY_HAND)
async def test_a_repaired_job_runs_to_its_end(dsn: str, name: str) -> None:
    async with fleet(dsn) as running:
        role = await running.orchestrator()
        job_id = await running.submit(single(retry=retry(1)))
        await running.until("SELECT count(*) = 1 AS ok FROM dagapp.dag_tasks_waiting")
        await running.until("SELECT count(*) = 0 AS ok FROM dagapp.dag_mailbox")
        change(dsn, REPAIRED_BY_HAND[name], Owner(None, role.instance.me, job_id=job_id))
        [finding] = await look(dsn, repair=True)
        assert (finding.name, finding.is_open) == (name, False)
        await running.worker()
        await running.completed(job_id)


async def test_a_live_job_with_a_failed_node_ends_as_failed(dsn: str) -> None:
    async with fleet(dsn) as running:
        role = await running.orchestrator()
        job_id = await running.submit(single())
        await running.until("SELECT count(*) = 1 AS ok FROM dagapp.dag_tasks_waiting")
        await running.until("SELECT count(*) = 0 AS ok FROM dagapp.dag_mailbox")
        left = "CASE node_id WHEN 'work' THEN 'failed' ELSE 'completed' END::node_status"
        change(
            dsn,
            f"DELETE FROM dag_tasks_waiting; UPDATE dag_node_states SET status = {left}",
            Owner(None, role.instance.me, job_id=job_id),
        )
        [finding] = await look(dsn, repair=True)
        assert (finding.name, finding.is_open) == ("finished_live_jobs", False)
        [job] = await running.ended(job_id)
        assert job["status"] == "failed"


async def test_a_busy_fleet_has_no_findings(dsn: str) -> None:
    async with fleet(dsn) as running:
        for _ in range(2):
            await running.orchestrator()
            await running.worker()
        flaky = single("flaky_echo", params={"fail_attempts": 1}, retry=retry(2, 0.05), workflow_id="flaky")
        job_ids: list[int] = []
        findings: list[Finding] = []
        for _ in range(4):
            job_ids += [await running.submit(flaky) for _ in range(8)]
            job_ids += [await running.submit(fan(max_parallel=5), {"items": list(range(20))}) for _ in range(4)]
            findings += await look(dsn, limits=Limits(settle_seconds=0.2, orphan_seconds=30), recheck_seconds=0.2)
        await running.completed(*job_ids)
        findings += await look(dsn)
        assert findings == []


# The command.


async def ask(dsn: str, *args: str) -> Any:
    return await asyncio.to_thread(call, "doctor", "--database-url", dsn, *args)


async def test_the_command_reports_a_healthy_database(dsn: str) -> None:
    async with healthy(dsn, completed):
        result = await ask(dsn)
        assert result.code == 0
        assert "consistency checks passed" in result.out


async def test_the_command_lists_findings_and_repairs_them(dsn: str) -> None:
    async with healthy(dsn, completed) as job_owner:
        change(dsn, f"UPDATE dag_jobs SET owner_id = '{{owner}}', updated_at = {LONG_AGO}", job_owner)
        result = await ask(dsn)
        assert result.code == 1
        assert "ended jobs that still have an owner" in result.out and "--repair" in result.out
        assert str(job_owner.job_id) in result.out
        result = await ask(dsn, "--repair", "--json")
        assert result.code == 0
        [finding] = result.json["findings"]
        assert (finding["name"], finding["repaired"], finding["severity"]) == ("owned_ended_jobs", 1, Severity.PROBLEM)
        assert finding["examples"][0]["job_id"] == str(job_owner.job_id)
        assert {point["state"] for point in result.json["database"]} <= {"ok", "warning", "problem"}


# The database server.


async def points(dsn: str) -> dict[str, Point]:
    async with opened(dsn, application="test") as conn:
        return {point.name: point for point in await examine_database(conn)}


async def test_an_idle_database_is_healthy_apart_from_fsync(dsn: str) -> None:
    by_name = await points(dsn)
    assert {name for name, point in by_name.items() if point.state is not State.OK} == {"durability"}
    assert "fsync" in by_name["durability"].sentence
    assert by_name["connections"].data["by_application"]["test"] >= 1
    assert by_name["partitions"].data["partitions"] == 8
    assert {"dag_jobs", "dag_job_events"} <= set(by_name["tables"].data)


async def test_a_long_open_transaction_is_named_without_its_statement(dsn: str) -> None:
    async with await psycopg.AsyncConnection.connect(dsn, application_name="sleeper") as sleeper:
        await sleeper.execute("SELECT 'a secret'")
        by_name = await points(dsn)
        for name in ("oldest_transaction", "idle_in_transaction"):
            assert by_name[name].data["application_name"] == "sleeper"
            assert by_name[name].data["pid"] == sleeper.info.backend_pid
            assert "a secret" not in str(by_name[name])


async def test_a_session_that_waits_for_a_lock_is_reported(dsn: str) -> None:
    lock = "LOCK TABLE dagapp.dag_secrets"
    async with (
        await psycopg.AsyncConnection.connect(dsn) as first,
        await psycopg.AsyncConnection.connect(dsn) as second,
    ):
        await first.execute(lock)
        waiting = asyncio.create_task(second.execute(lock))
        await Fleet(dsn).until("SELECT count(*) > 0 AS ok FROM pg_locks WHERE NOT granted AND waitstart IS NOT NULL")
        assert (await points(dsn))["lock_wait"].data["pid"] == second.info.backend_pid
        await first.rollback()
        await waiting


@pytest.mark.parametrize(
    ("value", "state"),
    [(1.0, State.OK), (61.0, State.WARNING), (601.0, State.PROBLEM)],
    ids=["ok", "warning", "problem"],
)
def test_findings_become_more_severe_with_time(value: float, state: State) -> None:
    assert _graded(value, 60, 600) is state


def test_an_unsupported_server_is_told_the_oldest_supported_version() -> None:
    point = _server({"version": "14.9", "version_number": 140_009})
    assert (point.state, point.sentence) == (State.PROBLEM, "PostgreSQL 14.9 is older than 15: upgrade it.")


async def test_health_depends_on_database_workers_and_stale_tasks(dsn: str) -> None:
    async with fleet(dsn) as running, opened(dsn, application="test") as conn:
        await running.orchestrator()
        await running.submit(single())
        await running.until("SELECT count(*) = 1 AS ok FROM dagapp.dag_tasks_waiting")
        await rows(dsn, f"UPDATE dagapp.dag_tasks_waiting SET dispatched_at = {LONG_AGO}")
        health = await health_check(conn)
        assert (health["status"], health["active_workers"], health["stale_tasks"]) == ("degraded", 0, 1)
        await running.worker()
        await running.is_clean()
        health = await health_check(conn)
        assert (health["status"], health["active_workers"], health["stale_tasks"]) == ("ok", 1, 0)
        assert health["database"]["status"] == "ok"
