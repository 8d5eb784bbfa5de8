"""Jobs that ended some days ago, and their removal."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet
from fleet import fleet, graph, rows, single, task

from dagmaster.ids import JobId
from dagmaster.model.graph import Graph
from dagmaster.store import submission
from dagmaster.store.connect import Connection
from dagmaster.store.retention import Removed, read_limits, remove_old

# The tables with rows of jobs.
TABLES = (
    "dag_jobs",
    "dag_node_states",
    "dag_task_results",
    "dag_job_events",
    "dag_checkpoints",
    "dag_groups",
    "dag_dependencies",
    "dag_callbacks",
)


async def ended(
    dsn: str, definition: Graph | None = None, *, days_ago: float = 40.0, times: int = 1, **inputs: Any
) -> list[JobId]:
    """Jobs that ran and ended some days ago."""
    async with fleet(dsn) as running:
        await running.orchestrator()
        await running.worker()
        new = [submission.NewJob(definition or single(), inputs) for _ in range(times)]
        job_ids = await running.submit_all(new)
        await running.ended(*job_ids)
        await running.is_clean()
    await age(dsn, job_ids, days_ago)
    return job_ids


async def add_groups(dsn: str, job_id: int, count: int = 1) -> None:
    """Groups of added tasks, each after the previous one."""
    await rows(
        dsn,
        "INSERT INTO dagapp.dag_groups (group_id, job_id, name) "
        "SELECT n, %s, 'g' || n FROM generate_series(1, %s) AS n",
        job_id,
        count,
    )
    await rows(
        dsn,
        "INSERT INTO dagapp.dag_dependencies (job_id, previous_id, previous_type, next_id, next_type) "
        "SELECT %s, n - 1, 'group', n, 'group' FROM generate_series(1, %s) AS n",
        job_id,
        count,
    )


async def age(dsn: str, job_ids: list[JobId], days: float) -> None:
    for table, columns in (
        ("dag_jobs", ("created_at", "started_at", "completed_at")),
        ("dag_node_states", ("created_at", "dispatched_at", "started_at", "completed_at")),
        ("dag_job_events", ("created_at",)),
    ):
        changes = ", ".join(f"{name} = {name} - make_interval(secs => {86400 * days})" for name in columns)
        await rows(dsn, f"UPDATE dagapp.{table} SET {changes} WHERE job_id = ANY(%s)", job_ids)


async def make_day(dsn: str, days_ago: int) -> str:
    """Create the timeline's partition of that day."""
    low = datetime.now(UTC).date() - timedelta(days=days_ago)
    await rows(
        dsn,
        f"""CREATE TABLE dagapp.dag_job_events_{low:%Y%m%d} PARTITION OF dagapp.dag_job_events
            FOR VALUES FROM ('{low} 00:00+00') TO ('{low + timedelta(days=1)} 00:00+00')""",
    )
    return f"{low:%Y%m%d}"


async def remove_alone(conn: Connection) -> None:
    """Let no other process remove old jobs while this connection is open; a running orchestrator tries periodically."""
    await conn.execute("SELECT pg_advisory_lock(7233, 1)")


async def remove(conn: Connection, days: float | None = 30.0, **options: Any) -> Removed:
    return await remove_old(conn, await read_limits(conn, days), **options)


async def counts(dsn: str) -> dict[str, int]:
    """Rows of jobs, without the system's own timeline."""
    by_table = {}
    for table in TABLES:
        [row] = await rows(dsn, f"SELECT count(*) AS n FROM dagapp.{table} WHERE job_id <> 0")
        by_table[table] = row["n"]
    return by_table


async def left(dsn: str) -> set[int]:
    return {row["job_id"] for row in await rows(dsn, "SELECT job_id FROM dagapp.dag_jobs")}


def kept_for(days: float, workflow_id: str) -> Graph:
    return graph({"work": task("echo", "END")}, workflow_id, start="work", retention_days=days)


def exported(folder: Path, kind: str) -> list[dict[str, Any]]:
    records = []
    for path in sorted((folder / kind).rglob("*.parquet")):
        records += pyarrow.parquet.ParquetFile(path).read().to_pylist()
    return records
