"""The status and statistics of orchestrators, individually and combined."""

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import APIRouter

from dagmaster.errors import Unavailable
from dagmaster.http.errors import documented
from dagmaster.model.redact import redact, redact_text
from dagmaster.schemas.fleet import (
    FleetActivity,
    FleetStats,
    FleetStatus,
    OrchestratorActivity,
    OrchestratorStats,
    OrchestratorStatus,
)
from dagmaster.store.connect import Connection
from dagmaster.store.orchestrators import backlog, list_orchestrators
from dagmaster.web.access import READERS
from dagmaster.web.services import Conn, Services, ServicesDep

router = APIRouter(prefix="/api/v1/orchestrator", tags=["fleet"], responses=documented(503))

Row = Mapping[str, Any]

SUMMED = ("tasks_dispatched", "results_processed", "errors")


@router.get("/status", dependencies=[READERS])
async def orchestrator_status(services: ServicesDep, conn: Conn) -> FleetStatus:
    """List the orchestrators and their work; 503 if none is running."""
    rows = await _alive(conn, services)
    return _fleet_status(rows, (await backlog(conn))["pending_results"])


@router.get("/stats", dependencies=[READERS])
async def orchestrator_stats(services: ServicesDep, conn: Conn) -> FleetStats:
    """Get the throughput and error rate of the orchestrators."""
    return _fleet_stats(await _alive(conn, services))


@router.get("/activity", dependencies=[READERS])
async def orchestrator_activity(services: ServicesDep, conn: Conn) -> FleetActivity:
    """Get the current and recent activity of the orchestrators."""
    return _fleet_activity(await _alive(conn, services), await backlog(conn))


async def _alive(conn: Connection, services: Services) -> list[dict[str, Any]]:
    """The live instances: the one in this process with current values, the others as of their last heartbeat."""
    rows = await list_orchestrators(conn, threshold_seconds=services.settings.orphan_threshold_seconds)
    if not rows:
        raise Unavailable("no orchestrator is running; start one with `dagmaster orchestrator`")
    own = services.own_stats()
    return [{**row, "stats": own.get(row["orchestrator_id"], row["stats"])} for row in rows]


def _fleet_status(rows: Sequence[Row], pending_results: int) -> FleetStatus:
    """The totals; values that cannot be added come from the instance that was active last."""
    instances = [_status(row) for row in rows]
    last = max(
        instances,
        key=lambda instance: (instance.last_cycle_at is not None, instance.last_cycle_at or instance.started_at),
    )
    oldest = max(instances, key=lambda instance: instance.uptime_seconds)
    return FleetStatus(
        **last.model_dump(exclude={"pending_results", "active_jobs", *SUMMED, "started_at", "uptime_seconds"}),
        started_at=oldest.started_at,
        uptime_seconds=oldest.uptime_seconds,
        active_jobs=sum(instance.active_jobs for instance in instances),
        pending_results=pending_results,
        **{name: sum(getattr(instance, name) for instance in instances) for name in SUMMED},
        instances=instances,
    )


def _status(row: Row) -> OrchestratorStatus:
    stats = row["stats"]
    error = stats.get("last_error")
    return OrchestratorStatus(
        status="running",
        is_running=True,
        instance_id=row["orchestrator_id"],
        hostname=row["hostname"],
        started_at=row["started_at"],
        uptime_seconds=round(row["uptime_seconds"], 1),
        last_heartbeat=row["heartbeat_at"],
        current_phase=stats.get("current_phase"),
        active_jobs=row["jobs_owned"],
        pending_results=None,
        last_cycle_at=stats.get("last_cycle_at"),
        last_error=redact_text(error) if error else None,
        **{name: stats.get(name, 0) for name in SUMMED},
    )


def _fleet_stats(rows: Sequence[Row]) -> FleetStats:
    instances = [_stats(row) for row in rows]
    names = dict.fromkeys(name for instance in instances for name in instance.counters)
    weights = sum(instance.cycles for instance in instances if instance.cycle_duration_avg_ms is not None)
    timed = [
        (instance.cycle_duration_avg_ms, instance.cycles)
        for instance in instances
        if instance.cycle_duration_avg_ms is not None
    ]
    throughput = sum(instance.throughput for instance in instances)
    failing = sum(instance.error_rate * instance.throughput for instance in instances)
    return FleetStats(
        instance_id=None,
        cycles=sum(instance.cycles for instance in instances),
        throughput=round(throughput, 3),
        cycle_duration_avg_ms=round(sum(ms * n for ms, n in timed) / weights, 3) if weights else None,
        error_rate=round(failing / throughput, 4) if throughput else max(instance.error_rate for instance in instances),
        counters={name: sum(instance.counters.get(name, 0) for instance in instances) for name in names},
        failing_handlers=_failing([instance.failing_handlers for instance in instances]),
        failing_queues=_failing([instance.failing_queues for instance in instances]),
        workflows=_averages([instance.workflows for instance in instances]),
        instances=instances,
    )


def _failing(groups: Sequence[Row]) -> dict[str, Any]:
    """The sums over all instances, with one of their last errors."""
    together: dict[str, Any] = {}
    for name, figures in (item for group in groups for item in group.items()):
        known = together.setdefault(name, {"failed": 0, "last_error": None})
        known["failed"] += figures["failed"]
        known["last_error"] = figures["last_error"] or known["last_error"]
    return together


def _averages(groups: Sequence[Row]) -> dict[str, Any]:
    """Weighted by the jobs that ended in each instance."""
    together: dict[str, Any] = {}
    for name, figures in (item for group in groups for item in group.items()):
        known = together.setdefault(name, {"ended": 0, "avg_duration_seconds": 0.0, "success_rate": 0.0})
        ended = known["ended"] + figures["ended"]
        for figure in ("avg_duration_seconds", "success_rate"):
            if ended:
                known[figure] = round((known[figure] * known["ended"] + figures[figure] * figures["ended"]) / ended, 6)
        known["ended"] = ended
    return together


def _stats(row: Row) -> OrchestratorStats:
    stats = redact(row["stats"])
    return OrchestratorStats(
        instance_id=row["orchestrator_id"],
        cycles=stats.get("cycles", 0),
        throughput=stats.get("throughput_per_second", 0.0),
        cycle_duration_avg_ms=stats.get("cycle_duration_avg_ms"),
        error_rate=stats.get("error_rate", 0.0),
        **{name: stats.get(name, {}) for name in ("counters", "failing_handlers", "failing_queues", "workflows")},
    )


def _fleet_activity(rows: Sequence[Row], backlog: Row) -> FleetActivity:
    instances = [_activity(row) for row in rows]
    last = max(instances, key=lambda instance: (instance.cycle_started_at is not None, str(instance.cycle_started_at)))
    return FleetActivity(
        **last.model_dump(),
        queue_depth=backlog["queue_depth"],
        db_unprocessed_results=backlog["db_unprocessed_results"],
        instances=instances,
    )


def _activity(row: Row) -> OrchestratorActivity:
    stats = redact(row["stats"])
    return OrchestratorActivity(
        instance_id=row["orchestrator_id"],
        current_cycle_id=stats.get("current_cycle_id", 0),
        cycle_started_at=stats.get("cycle_started_at"),
        phase=stats.get("current_phase", "idle"),
        processing_job_id=stats.get("processing_job_id"),
        processing_node_id=stats.get("processing_node_id"),
        completions=stats.get("completions", []),
        failures=stats.get("failures", []),
    )
