"""Queues: waiting tasks, their workers, and tasks that no worker can run."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from dagmaster.authoring.preparation import queues_of
from dagmaster.service.context import KnownFleet
from dagmaster.store.orchestrators import list_orchestrators
from dagmaster.store.queues import list_queues, waiting_handlers
from dagmaster.web.access import READERS
from dagmaster.web.services import Conn
from dagmaster.web.ui.pages import Shown

router = APIRouter(prefix="/ui", include_in_schema=False)


@dataclass(frozen=True, slots=True)
class QueueLine:
    """`workers` consume it now; `workflows` of this server use it."""

    name: str
    waiting: int
    held: int
    running: int
    slots: int
    oldest_at: datetime | None
    workers: tuple[str, ...]
    workflows: tuple[str, ...]

    @property
    def most(self) -> int:
        return max(self.waiting + self.held + self.running, self.slots, 1)


@router.get("/queues", dependencies=[READERS])
async def show_queues(page: Shown, conn: Conn) -> HTMLResponse:
    settings = page.services.settings
    rows = await list_queues(conn, lost_after_seconds=settings.worker_lost_after_seconds)
    fleet = await page.services.fleet(conn)
    active = [worker for worker in fleet.workers if worker["wanted"] == "run"]
    queues = queue_lines(rows, active, page.services.workflows_by(queues_of))
    running = await list_orchestrators(conn, threshold_seconds=settings.orphan_threshold_seconds)
    own = page.services.own_stats()
    stats = [own.get(row["orchestrator_id"]) or row["stats"] for row in running]
    return page.render(
        "queues.html",
        {
            "queues": queues,
            "unclaimable": find_unclaimable(await waiting_handlers(conn), KnownFleet(fleet.is_orchestrated, active)),
            "waiting": sum(queue.waiting for queue in queues),
            "held": sum(queue.held for queue in queues),
            "running": sum(queue.running for queue in queues),
            "slots": sum(worker["concurrency"] for worker in active),
            "throughput": round(sum(values.get("throughput_per_second", 0) for values in stats), 2),
            "is_orchestrated": fleet.is_orchestrated,
        },
    )


def queue_lines(
    rows: Iterable[Mapping[str, Any]], workers: Iterable[Mapping[str, Any]], used: Mapping[str, list[str]]
) -> list[QueueLine]:
    """Queues with tasks or workers, or that a workflow uses, by name."""
    rows_by_queue = {row["queue"]: row for row in rows}
    empty = {"depth": 0, "held": 0, "running": 0, "oldest_wait_seconds": None}
    now, all_workers = datetime.now(UTC), list(workers)
    lines = []
    for name in sorted(rows_by_queue.keys() | used.keys()):
        row = rows_by_queue.get(name, empty)
        takers = [worker for worker in all_workers if name in worker["queues"]]
        waited = row["oldest_wait_seconds"]
        lines.append(
            QueueLine(
                name=name,
                waiting=row["depth"],
                held=row["held"],
                running=row["running"],
                slots=sum(worker["concurrency"] for worker in takers),
                # Rounded to seconds, so that a refreshed page differs only if something changed.
                oldest_at=None if waited is None else (now - timedelta(seconds=waited)).replace(microsecond=0),
                workers=tuple(worker["worker_id"] for worker in takers),
                workflows=tuple(used.get(name, ())),
            )
        )
    return lines


def find_unclaimable(rows: Iterable[Mapping[str, Any]], fleet: KnownFleet) -> list[Mapping[str, Any]]:
    """Waiting tasks for which no worker has both the queue and the handler."""
    return [
        {
            **row,
            "oldest_at": row["oldest"],
            "has_workers": any(row["queue"] in worker["queues"] for worker in fleet.workers),
        }
        for row in rows
        if not fleet.takes(row["queue"], row["handler"])
    ]
