"""The dashboard: running jobs, failures and their causes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from dagmaster.store.dashboard import HOURS, Thresholds, find_trouble, job_counts
from dagmaster.store.jobs import JobFilter
from dagmaster.store.measures import throughput
from dagmaster.store.queues import list_queues
from dagmaster.store.workers import list_workers
from dagmaster.store.workflows import runs_by_workflow
from dagmaster.web.access import READERS
from dagmaster.web.services import Conn
from dagmaster.web.ui.attention import Need, broken_files, find_needs, jobs_path
from dagmaster.web.ui.charts import draw_throughput, draw_ticks
from dagmaster.web.ui.filters import duration, number
from dagmaster.web.ui.jobs import job_lines
from dagmaster.web.ui.list_filters import ENDED
from dagmaster.web.ui.pages import Page, Shown
from dagmaster.web.ui.workers import WorkerLine, worker_line
from dagmaster.web.ui.workflows import last_run, waiting_runs

router = APIRouter(prefix="/ui", include_in_schema=False)

Row = Mapping[str, Any]

RECENT: Final = 10
WORKFLOWS: Final = 8
RUNS: Final = 20
MOST_WORKERS: Final = 500
SHOWN: Final = 6
MOST_NEEDS: Final = 8


@dataclass(frozen=True, slots=True)
class Tile:
    """`tone` is the status that gives the number its colour."""

    key: str
    name: str
    value: int
    icon: str
    href: str
    note: str
    tone: str = ""


@dataclass(frozen=True, slots=True)
class Fleet:
    """Live workers and their free slots."""

    workers: Sequence[WorkerLine]

    @property
    def slots(self) -> int:
        return sum(worker.slots for worker in self.workers)

    @property
    def free(self) -> int:
        return sum(worker.free for worker in self.workers)


@router.get("/", dependencies=[READERS])
async def show_dashboard(page: Shown, conn: Conn) -> HTMLResponse:
    lost_after = page.services.settings.worker_lost_after_seconds
    counts = await job_counts(conn)
    fleet = await _fleet(conn, lost_after)
    if not counts["has_jobs"]:
        catalog = page.services.catalog
        broken = len(broken_files(catalog))
        return page.render(
            "start.html", {"workflow_ids": sorted(catalog.workflows), "broken_files": broken, "fleet": fleet}
        )
    queues = await list_queues(conn, lost_after_seconds=lost_after)
    needs = await _needs(page, conn, counts)
    return page.render(
        "dashboard.html",
        {
            "tiles": _tiles(counts, queues, fleet),
            "needs": needs[:MOST_NEEDS],
            "further_needs": needs[MOST_NEEDS:],
            "throughput": draw_throughput(await throughput(conn, hours=1, bucket_minutes=1)),
            "jobs": await job_lines(conn, page.services.node_counts, JobFilter(), limit=RECENT),
            "workflows": await _workflows(conn),
            "queues": _busiest(queues),
            "queue_count": len(queues),
            "workers": fleet.workers[:SHOWN],
            "worker_count": len(fleet.workers),
        },
    )


async def _fleet(conn: Conn, lost_after_seconds: float) -> Fleet:
    """Busiest first."""
    rows = await list_workers(conn, status="active", limit=MOST_WORKERS)
    alive = [worker_line(row, lost_after_seconds) for row in rows if row["heartbeat_age_seconds"] < lost_after_seconds]
    return Fleet(sorted(alive, key=lambda worker: (-worker.running, worker.worker_id)))


async def _needs(page: Page, conn: Conn, counts: Row) -> list[Need]:
    services = page.services
    known = await services.fleet(conn)
    patience = Thresholds(services.settings.worker_lost_after_seconds, services.settings.stuck_after_seconds)
    trouble = await find_trouble(conn, patience)
    live = counts["pending"] + counts["running"]
    return find_needs(trouble, services.catalog, is_orchestrated=known.is_orchestrated, live_jobs=live)


def _tiles(counts: Row, queues: Sequence[Row], fleet: Fleet) -> list[Tile]:
    lately = f"in the last {_span(counts['since'])}"
    all_failed = jobs_path(status="failed", period=f"{ENDED}{HOURS}h")
    waiting = sum(queue["depth"] for queue in queues)
    oldest = max((queue["oldest_wait_seconds"] or 0.0 for queue in queues if queue["depth"]), default=0.0)
    paused = f"{counts['paused']} paused" if counts["paused"] else "jobs in progress"
    alive = len(fleet.workers)
    return [
        Tile("running", "Running", counts["running"], "loader", "/ui/jobs?status=running", paused, "running"),
        Tile("pending", "Pending", counts["pending"], "clock", "/ui/jobs?status=pending", "not started"),
        Tile("failed", "Failed", counts["failed"], "x-octagon", all_failed, f"in the last {HOURS} h", "failed"),
        Tile(
            "completed",
            "Completed",
            counts["completed"],
            "check-circle",
            _ended("completed", counts),
            lately,
            "completed",
        ),
        Tile(
            "workers",
            "Workers",
            alive,
            "server",
            "/ui/workers",
            f"{number(fleet.free)} of {number(fleet.slots)} slots free" if alive else "no tasks can run",
            "" if alive else "failed",
        ),
        Tile(
            "tasks",
            "Tasks waiting",
            waiting,
            "inbox",
            "/ui/tasks?state=waiting",
            f"oldest {duration(oldest)}" if waiting else "no backlog",
        ),
    ]


def _is_whole(since: datetime) -> bool:
    """Whether the whole period was counted; counting stops early if there is too much."""
    return datetime.now(UTC) - since > timedelta(hours=HOURS - 0.1)


def _span(since: datetime) -> str:
    return f"{HOURS} h" if _is_whole(since) else duration((datetime.now(UTC) - since).total_seconds())


def _ended(status: str, counts: Row) -> str:
    """The URL that lists exactly the counted jobs."""
    since: datetime = counts["since"]
    when = {"period": f"{ENDED}{HOURS}h"} if _is_whole(since) else {"ended_after": since.isoformat()}
    return jobs_path(status=status, **when)


async def _workflows(conn: Conn) -> list[Row]:
    runs_of = await runs_by_workflow(conn, workflows=WORKFLOWS, runs=RUNS)
    waiting = await waiting_runs(conn, runs_of.values())
    return [
        {"workflow_id": workflow_id, "last": last_run(runs, waiting), "ticks": draw_ticks(runs)}
        for workflow_id, runs in runs_of.items()
        if runs
    ]


def _busiest(queues: Sequence[Row]) -> list[Row]:
    return sorted(queues, key=lambda row: (-row["depth"], -row["running"], row["queue"]))[:SHOWN]
