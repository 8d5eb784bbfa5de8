"""Queues: what waits, who takes it, and what nobody can run."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from dagmaster.authoring.preparation import tasks_of
from dagmaster.service.fleet import KnownFleet
from dagmaster.store.orchestrators import list_orchestrators
from dagmaster.store.queues import list_queues, waiting_handlers
from dagmaster.web.access import READERS
from dagmaster.web.services import Conn
from dagmaster.web.ui.pages import Page, Shown

router = APIRouter(prefix="/ui", include_in_schema=False)


@dataclass(frozen=True, slots=True)
class QueueLine:
    """`workers` take from it now; `workflows` of this server put tasks into it."""

    name: str
    waiting: int
    held: int
    running: int
    slots: int
    oldest_at: datetime | None
    workers: tuple[str, ...]
    workflows: tuple[str, ...]

    @property
    def is_lonely(self) -> bool:
        return not self.workers

    @property
    def most(self) -> int:
        return max(self.waiting + self.held + self.running, self.slots, 1)


@dataclass(frozen=True, slots=True)
class Homeless:
    """Tasks that wait, and no worker has both their queue and their handler."""

    queue: str
    handler: str
    waiting: int
    oldest_at: datetime
    has_workers: bool


@router.get("/queues", dependencies=[READERS])
async def show_queues(page: Shown, conn: Conn) -> HTMLResponse:
    settings = page.services.settings
    rows = await list_queues(conn, lost_after_seconds=settings.worker_lost_after_seconds)
    fleet = await page.services.fleet(conn)
    taking = [one for one in fleet.workers if one["wanted"] == "run"]
    queues = queue_lines(rows, taking, used_queues(page))
    running = await list_orchestrators(conn, threshold_seconds=settings.orphan_threshold_seconds)
    own = page.services.own_stats()
    stats = [own.get(one["orchestrator_id"]) or one["stats"] for one in running]
    return page.render(
        "queues.html",
        {
            "queues": queues,
            "homeless": find_homeless(await waiting_handlers(conn), KnownFleet(fleet.is_orchestrated, taking)),
            "waiting": sum(one.waiting for one in queues),
            "held": sum(one.held for one in queues),
            "running": sum(one.running for one in queues),
            "slots": sum(one["concurrency"] for one in taking),
            "throughput": round(sum(one.get("throughput_per_second", 0) for one in stats), 2),
            "is_orchestrated": fleet.is_orchestrated,
        },
    )


def used_queues(page: Page) -> dict[str, list[str]]:
    """The workflows that put tasks into each queue."""
    used: dict[str, list[str]] = {}
    for name, workflow in sorted(page.services.catalog.workflows.items()):
        for queue in {queue for queue, _ in tasks_of(workflow)}:
            used.setdefault(queue, []).append(name)
    return used


def queue_lines(
    rows: Iterable[Mapping[str, Any]], workers: Iterable[Mapping[str, Any]], used: Mapping[str, list[str]]
) -> list[QueueLine]:
    """Those with tasks or workers, and those that a workflow uses; by name."""
    known = {row["queue"]: row for row in rows}
    empty = {"depth": 0, "held": 0, "running": 0, "oldest_wait_seconds": None}
    now, all_workers = datetime.now(UTC), list(workers)
    lines = []
    for name in sorted(known.keys() | used.keys()):
        row = known.get(name, empty)
        takers = [one for one in all_workers if name in one["queues"]]
        waited = row["oldest_wait_seconds"]
        lines.append(
            QueueLine(
                name=name,
                waiting=row["depth"],
                held=row["held"],
                running=row["running"],
                slots=sum(one["concurrency"] for one in takers),
                # To the second: a page that is asked for again must not differ for nothing.
                oldest_at=None if waited is None else (now - timedelta(seconds=waited)).replace(microsecond=0),
                workers=tuple(one["worker_id"] for one in takers),
                workflows=tuple(used.get(name, ())),
            )
        )
    return lines


def find_homeless(rows: Iterable[Mapping[str, Any]], fleet: KnownFleet) -> list[Homeless]:
    return [
        Homeless(
            queue=row["queue"],
            handler=row["handler"],
            waiting=row["waiting"],
            oldest_at=row["oldest"],
            has_workers=any(row["queue"] in one["queues"] for one in fleet.workers),
        )
        for row in rows
        if not fleet.takes(row["queue"], row["handler"])
    ]
