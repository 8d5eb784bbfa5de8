"""The health checks. Each is one quick query or a look at memory."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from dagmaster.authoring.preparation import queues_of
from dagmaster.errors import NotFound
from dagmaster.store.connect import AWAY, Connection
from dagmaster.store.health import health_check
from dagmaster.store.orchestrators import stalled_orchestrators
from dagmaster.store.queues import list_queues
from dagmaster.store.schedules import schedule_counts
from dagmaster.store.schema import HEAD, current_revision, missing_partitions
from dagmaster.web.services import Services

# Health checks must answer quickly.
REACH_SECONDS = 2.0
# An orchestrator may fail this long before it is reported.
NO_PROGRESS_SECONDS = 30.0


class Health(StrEnum):
    HEALTHY = "healthy"
    DEGRADED = "degraded"
    UNHEALTHY = "unhealthy"


@dataclass(frozen=True, slots=True)
class Verdict:
    health: Health
    message: str
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    category: str
    look: Callable[[Connection, Services], Awaitable[Verdict]]


async def examine(services: Services, names: Sequence[str] = ()) -> dict[Check, Verdict]:
    """All checks, or those of these names."""
    chosen = [check for check in CHECKS if not names or check.name in names]
    verdicts: dict[Check, Verdict] = {}
    try:
        async with services.pool.connection(timeout=REACH_SECONDS) as conn:
            for check in chosen:
                verdicts[check] = await check.look(conn, services)
    except AWAY as error:
        verdict = Verdict(Health.UNHEALTHY, f"the check failed: {type(error).__name__}")
        verdicts |= {check: verdict for check in chosen if check not in verdicts}
    return verdicts


def overall(verdicts: Sequence[Verdict]) -> Health:
    """The worst status of all checks."""
    order = list(Health)
    return max((verdict.health for verdict in verdicts), key=order.index, default=Health.HEALTHY)


def get_check(name: str) -> Check:
    for check in CHECKS:
        if check.name == name:
            return check
    raise NotFound(f"there is no check {name!r}; valid are {', '.join(check.name for check in CHECKS)}")


async def _health_figures(conn: Connection, services: Services) -> dict[str, Any]:
    settings = services.settings
    return await health_check(
        conn,
        worker_lost_seconds=settings.worker_lost_after_seconds,
        orphan_seconds=settings.orphan_threshold_seconds,
        stuck_seconds=settings.stuck_after_seconds,
    )


async def _database(conn: Connection, services: Services) -> Verdict:
    figures = (await _health_figures(conn, services))["database"]
    return Verdict(
        Health.HEALTHY, f"responded in {figures['latency_ms']:.3g} ms", {"latency_ms": figures["latency_ms"]}
    )


async def _schema(conn: Connection, _: Services) -> Verdict:
    revision = await current_revision(conn)
    details = {"revision": revision, "head": HEAD}
    if revision != HEAD:
        return Verdict(Health.UNHEALTHY, f"revision {revision}; this version of dagmaster needs {HEAD}", details)
    return Verdict(Health.HEALTHY, f"revision {HEAD}", details)


async def _orchestrators(conn: Connection, services: Services) -> Verdict:
    active = (await _health_figures(conn, services))["active_orchestrators"]
    stalled = await stalled_orchestrators(
        conn,
        progress_seconds=NO_PROGRESS_SECONDS,
        orphan_seconds=services.settings.orphan_threshold_seconds,
    )
    if not stalled:
        return _running(active, "orchestrator")
    progressing = active - sum(row["status"] == "running" for row in stalled)
    names = ", ".join(f"{row['orchestrator_id']} on {row['hostname']}" for row in stalled)
    health = Health.DEGRADED if progressing > 0 else Health.UNHEALTHY
    return Verdict(health, f"no progress: {names}", {"active": progressing, "stalled": stalled})


async def _workers(conn: Connection, services: Services) -> Verdict:
    return _running((await _health_figures(conn, services))["active_workers"], "worker")


def _running(number: int, role: str) -> Verdict:
    if not number:
        return Verdict(Health.DEGRADED, f"no {role} is running; jobs wait for one", {"active": 0})
    return Verdict(Health.HEALTHY, f"{number} running", {"active": number})


async def _tasks(conn: Connection, services: Services) -> Verdict:
    figures = await _health_figures(conn, services)
    details = {name: figures[name] for name in ("stuck_tasks", "abandoned_tasks")}
    if figures["stale_tasks"]:
        return Verdict(Health.DEGRADED, f"{figures['stale_tasks']} tasks are stale", details)
    return Verdict(Health.HEALTHY, "no stale tasks", details)


async def _queues(conn: Connection, services: Services) -> Verdict:
    """A task without a queue can never run; a task in a queue without workers waits."""
    without_queue = sorted(
        f"{Path(file).name}: {problem.message}"
        for file, problems in services.catalog.problems.items()
        for problem in problems
        if problem.is_error and problem.is_about_queue
    )
    if without_queue:
        return Verdict(Health.UNHEALTHY, "workflows have tasks without a queue", {"problems": without_queue})
    rows = await list_queues(conn, lost_after_seconds=services.settings.worker_lost_after_seconds)
    consumed = {row["queue"] for row in rows if row["consumers"]}
    used = {queue for workflow in services.catalog.workflows.values() for queue in queues_of(workflow)}
    waiting = {row["queue"] for row in rows if row["depth"]}
    unconsumed = sorted((used | waiting) - consumed)
    if unconsumed:
        return Verdict(Health.DEGRADED, f"no worker consumes {', '.join(unconsumed)}", {"without_consumer": unconsumed})
    return Verdict(Health.HEALTHY, "every queue has a worker", {"queues": sorted(used)})


async def _workflows(_: Connection, services: Services) -> Verdict:
    """Without this check a broken file goes unnoticed until someone submits it."""
    catalog = services.catalog
    broken = sorted(
        Path(file).name
        for file, problems in catalog.problems.items()
        if any(problem.is_error and not problem.is_about_queue for problem in problems)
    )
    if broken:
        return Verdict(Health.DEGRADED, f"not loaded because of errors: {', '.join(broken)}", {"files": broken})
    return Verdict(Health.HEALTHY, "every workflow file is loaded", {"workflows": len(catalog.workflows)})


async def _partitions(conn: Connection, _: Services) -> Verdict:
    missing = await missing_partitions(conn)
    if missing:
        return Verdict(Health.DEGRADED, "the timeline has no partition for today or tomorrow", {"missing": missing})
    return Verdict(Health.HEALTHY, "partitions exist for today and tomorrow")


async def _schedules(conn: Connection, _: Services) -> Verdict:
    counts = await schedule_counts(conn)
    if counts["late"]:
        return Verdict(Health.DEGRADED, f"{counts['late']} schedules are late; is an orchestrator running?", counts)
    return Verdict(Health.HEALTHY, "no schedule is late", counts)


CHECKS = (
    Check("database", "storage", _database),
    Check("schema", "storage", _schema),
    Check("partitions", "storage", _partitions),
    Check("orchestrators", "fleet", _orchestrators),
    Check("workers", "fleet", _workers),
    Check("queues", "work", _queues),
    Check("tasks", "work", _tasks),
    Check("schedules", "work", _schedules),
    Check("workflows", "work", _workflows),
)
