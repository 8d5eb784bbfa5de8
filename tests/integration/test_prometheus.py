from typing import Any

import psycopg
from fleet import fan, fleet, rows, single
from prometheus_client.parser import text_string_to_metric_families

from dagmaster.store.connect import opened
from dagmaster.web.prometheus import render


async def samples(dsn: str) -> dict[tuple[str, str], float]:
    """The values by name and the value of the first label."""
    async with opened(dsn, application="test") as conn:
        text = (await render(conn)).decode()
    by_name: dict[tuple[str, str], float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = [value for name, value in sample.labels.items() if name in FIRST]
            further = [f"{name}={value}" for name, value in sample.labels.items() if name not in FIRST]
            by_name[sample.name.removeprefix("dagmaster_"), " ".join([*labels, *further])] = sample.value
    return by_name


FIRST = ("instance", "worker", "queue", "application")


async def test_any_process_exposes_the_whole_fleet(dsn: str) -> None:
    async with fleet(dsn) as running:
        role = await running.orchestrator()
        worker = await running.worker()
        await running.run(fan(), {"items": [1, 2, 3]})
        await running.run(single("fail"))
        await running.submit(single(queue="lonely"))
        await running.until(
            "SELECT (stats -> 'counters' ->> 'jobs_failed')::int = 1 AND jobs_owned = 1 "
            "AND (stats -> 'counters' ->> 'tasks_created')::int = 5 AS ok FROM dagapp.dag_orchestrators"
        )
        metrics = await samples(dsn)
    me = role.id
    assert metrics["jobs_created_total", me] == 3
    assert metrics["jobs_completed_total", me] == 1
    assert metrics["jobs_failed_total", me] == 1
    assert metrics["tasks_created_total", me] == 5
    assert (metrics["tasks_completed_total", me], metrics["tasks_failed_total", me]) == (3, 1)
    assert metrics["job_duration_seconds_count", me] == metrics["job_duration_seconds_bucket", f"{me} le=+Inf"] == 2
    assert metrics["task_duration_seconds_count", me] == metrics["worker_task_execution_time_count", me] == 4
    assert metrics["task_claim_latency_seconds_count", me] == 4
    assert metrics["orchestrator_cycle_seconds_count", me] > 0
    assert metrics["orchestrator_phase_seconds_total", f"{me} phase=dispatching"] > 0
    assert metrics["task_queue_depth", "lonely"] == 1
    assert metrics["tasks_running", "lonely"] == 0
    assert (metrics["workers_active", ""], metrics["orchestrators_active", ""]) == (1, 1)
    assert 0 <= metrics["worker_heartbeat_age_seconds", worker.id] < 30
    assert 0 <= metrics["orchestrator_heartbeat_age_seconds", me] < 30
    assert metrics["orchestrator_jobs_owned", me] == 1
    assert metrics["database_connections", "test"] >= 1
    assert (metrics["callbacks_waiting", ""], metrics["callbacks_failed", ""]) == (0, 0)


async def test_an_ended_instance_keeps_its_counters_and_is_not_active(dsn: str) -> None:
    async with fleet(dsn) as running:
        role = await running.orchestrator()
        await running.worker()
        await running.run(single())
        await running.until(
            "SELECT (stats -> 'counters' ->> 'jobs_completed')::int = 1 AS ok FROM dagapp.dag_orchestrators"
        )
    metrics = await samples(dsn)
    assert metrics["jobs_completed_total", role.id] == 1
    assert metrics["orchestrators_active", ""] == metrics["workers_active", ""] == 0
    assert ("orchestrator_heartbeat_age_seconds", role.id) not in metrics


async def test_an_empty_database_has_metrics_too(dsn: str) -> None:
    metrics = await samples(dsn)
    assert metrics["workers_active", ""] == 0
    assert not any(name == "jobs_created_total" for name, _ in metrics)


async def test_missing_counters_of_an_instance_of_another_version_are_omitted(dsn: str) -> None:
    await rows(
        dsn,
        "INSERT INTO dagapp.dag_orchestrators (orchestrator_id, hostname, pid, host_key, status, stats) "
        "VALUES ('old', 'h', 1, 'k', 'running', '{\"cycles\": 7}')",
    )
    metrics = await samples(dsn)
    assert metrics["orchestrator_cycles_total", "old"] == 7
    assert ("jobs_created_total", "old") not in metrics


async def test_waiting_and_abandoned_callbacks_are_counted(dsn: str) -> None:
    def add(conn: psycopg.Connection[Any], status: str) -> None:
        conn.execute(
            "INSERT INTO dagapp.dag_callbacks (job_id, url, job_status, status) VALUES (1, 'u', 'failed', %s)", [status]
        )

    with psycopg.connect(dsn, autocommit=True) as conn:
        for status in ("waiting", "failed", "failed", "delivered"):
            add(conn, status)
    metrics = await samples(dsn)
    assert (metrics["callbacks_waiting", ""], metrics["callbacks_failed", ""]) == (1, 2)
