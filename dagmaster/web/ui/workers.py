"""Workers and orchestrators: state, load and controls."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse

from dagmaster.ids import WorkerId
from dagmaster.model.redact import redact
from dagmaster.store.orchestrators import list_orchestrators
from dagmaster.store.workers import WorkerRow, list_workers
from dagmaster.web.access import READERS
from dagmaster.web.services import Conn
from dagmaster.web.ui.pages import Shown, paged

router = APIRouter(prefix="/ui", include_in_schema=False)

PAGE_SIZE: Final = 50
STATUSES: Final = ("active", "stopped", "lost")
MAX_SQUARES: Final = 64


@dataclass(frozen=True, slots=True)
class WorkerLine:
    """`stuck` slots have handlers that continue after their task has ended; they do not count as running."""

    worker_id: WorkerId
    hostname: str
    pid: int
    status: str
    label: str
    queues: tuple[str, ...]
    handlers: tuple[str, ...] | None
    slots: int
    running: int
    stuck: int
    completed: int
    failed: int
    memory_bytes: int | None
    is_remote: bool
    started_at: datetime
    heartbeat_at: datetime

    @property
    def busy(self) -> int:
        return max(min(self.running, self.slots - self.stuck), 0)

    @property
    def free(self) -> int:
        return max(self.slots - self.busy - self.stuck, 0)

    @property
    def squares(self) -> list[str]:
        """One for each slot, busy ones first, up to the available width."""
        return (["stuck"] * self.stuck + ["busy"] * self.busy + ["free"] * self.free)[:MAX_SQUARES]

    @property
    def is_here(self) -> bool:
        return self.status not in ("stopped", "lost")


@router.get("/workers", dependencies=[READERS])
async def show_workers(
    page: Shown, conn: Conn, status: str = "", offset: Annotated[int, Query(ge=0, le=1_000_000)] = 0
) -> HTMLResponse:
    settings = page.services.settings
    chosen = status if status in STATUSES else ""
    lost_after = settings.worker_lost_after_seconds
    rows = await list_workers(conn, status=chosen or None, limit=PAGE_SIZE + 1, offset=offset)
    beating = await list_orchestrators(conn, threshold_seconds=settings.orphan_threshold_seconds)
    own = page.services.own_stats()
    workers = [worker_line(row, lost_after) for row in rows[:PAGE_SIZE]]
    return page.render(
        "workers.html",
        {
            "workers": workers,
            "orchestrators": [
                orchestrator_line(row, own.get(row["orchestrator_id"]) or row["stats"]) for row in beating
            ],
            "is_silent": not any(worker.status == "active" for worker in workers)
            and not offset
            and chosen in ("", "active"),
            "status_chosen": chosen,
            "statuses": STATUSES,
            **paged(rows, PAGE_SIZE, offset),
        },
    )


def worker_line(row: WorkerRow, lost_after_seconds: float) -> WorkerLine:
    status, label = _status(row, lost_after_seconds)
    stats = row["stats"]
    memory = stats.get("peak_memory_bytes")
    return WorkerLine(
        worker_id=row["worker_id"],
        hostname=row["hostname"],
        pid=row["pid"],
        status=status,
        label=label,
        queues=tuple(row["queues"]),
        handlers=None if row["handlers"] is None else tuple(sorted(row["handlers"])),
        slots=row["concurrency"],
        running=row["running_tasks"],
        stuck=len(row["stuck_tasks"]),
        completed=row["tasks_completed"],
        failed=row["tasks_failed"],
        # A worker over HTTP may report anything.
        memory_bytes=memory if isinstance(memory, int) else None,
        is_remote=row["key_id"] is not None,
        started_at=row["started_at"],
        heartbeat_at=row["last_heartbeat"],
    )


def _status(row: WorkerRow, lost_after_seconds: float) -> tuple[str, str]:
    """The status, and the word shown for it."""
    if row["status"] != "active":
        return row["status"], row["status"]
    if row["heartbeat_age_seconds"] > lost_after_seconds:
        return "warning", "silent"
    label = {"drain": "draining", "stop": "stopping"}.get(row["wanted"])
    return ("draining", label) if label else ("active", "active")


def orchestrator_line(row: Mapping[str, Any], stats: Mapping[str, Any]) -> dict[str, Any]:
    """`lag_ms` is the average duration of a cycle."""
    return {
        **row,
        "lag_ms": stats.get("cycle_duration_avg_ms"),
        "throughput": stats.get("throughput_per_second", 0.0),
        "error_rate": stats.get("error_rate", 0.0),
        "last_error": redact(stats.get("last_error")),
    }
