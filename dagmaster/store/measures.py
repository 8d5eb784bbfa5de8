"""Statistics of recent jobs, computed from their rows."""

from datetime import UTC, datetime, timedelta

from dagmaster.errors import Invalid
from dagmaster.store.connect import Connection, Row
from dagmaster.store.health import connection_use
from dagmaster.store.orchestrators import list_orchestrators
from dagmaster.store.queues import list_queues
from dagmaster.store.schedules import schedule_counts
from dagmaster.store.statements import fetch, fetch_one
from dagmaster.store.workers import list_workers

MAX_DAYS = 90
MAX_HOURS = 168
MAX_CAUSES = 100
MAX_BUCKET_MINUTES = 1440
# Entries of an orchestrator's stats that are not metrics.
LONG_STATS = ("completions", "failures", "workflows", "failing_handlers", "failing_queues")


async def workflow_measures(conn: Connection, workflow_id: str | None = None, days: int = 7) -> list[Row]:
    """`success_rate` is the share among completed and failed jobs, or None; durations are of completed jobs."""
    _check("days", days, MAX_DAYS)
    rows = await fetch(conn, "workflow_measures", {"workflow_id": workflow_id, "days": days})
    until = datetime.now(UTC)
    period = {"days": days, "from": until - timedelta(days=days), "to": until}
    return [row | {"period": period} for row in rows]


async def node_measures(conn: Connection, workflow_id: str, days: int = 7) -> list[Row]:
    """A fan-out stands for its children. `executions` counts nodes, not attempts."""
    _check("days", days, MAX_DAYS)
    return await fetch(conn, "node_measures", {"workflow_id": workflow_id, "days": days})


async def failure_measures(
    conn: Connection, workflow_id: str | None = None, days: int = 7, limit: int = 20
) -> list[Row]:
    """The most frequent causes first. In the messages `<n>` stands for any number and `<id>` for any UUID."""
    _check("days", days, MAX_DAYS)
    _check("limit", limit, MAX_CAUSES)
    values = {"workflow_id": workflow_id, "days": days, "limit": limit}
    return await fetch(conn, "failure_measures", values)


async def count_failures(conn: Connection, workflow_id: str | None = None, days: int = 7) -> int:
    [row] = await fetch(conn, "count_failures", {"workflow_id": workflow_id, "days": days})
    return int(row["total"])


async def throughput(conn: Connection, hours: int = 24, bucket_minutes: int = 60) -> list[Row]:
    """One row per bucket, oldest first; the last bucket is not over yet."""
    _check("hours", hours, MAX_HOURS)
    _check("bucket_minutes", bucket_minutes, MAX_BUCKET_MINUTES)
    return await fetch(conn, "throughput", {"hours": hours, "bucket_minutes": bucket_minutes})


async def fleet_measures(conn: Connection) -> Row:
    """The current state of the fleet, without history."""
    return {
        "orchestrators": await list_orchestrators(conn, omitted_stats=LONG_STATS),
        "workers": await list_workers(conn, status="active"),
        "queues": await list_queues(conn),
        "callbacks": await fetch_one(conn, "callback_counts"),
        "connections": await connection_use(conn),
        "schedules": await schedule_counts(conn),
    }


def _check(name: str, value: int, most: int) -> None:
    if not 1 <= value <= most:
        raise Invalid(f"{name} must be between 1 and {most}, not {value}")
