"""What happened to a job, told in words: on a page of its own and on the job's."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Query, Response

from dagmaster.model.timeline import WORDS
from dagmaster.schemas.timeline import TimelineEntry
from dagmaster.store.connect import Connection
from dagmaster.store.events import EventFilter, find_events
from dagmaster.web.access import READERS_OF_OWN
from dagmaster.web.entries import entry_of
from dagmaster.web.services import Conn
from dagmaster.web.ui.etag import mark_of, unchanged
from dagmaster.web.ui.pages import Shown, ShownJob

router = APIRouter(prefix="/ui", include_in_schema=False)

PAGE_SIZE: Final = 100
ICONS: Final = {"success": "check-circle", "failure": "x-octagon", "warning": "alert-triangle", "info": "circle"}
NOT_OF_JOBS: Final = frozenset({"command", "schedule_missed", "orchestrator_cycle"})
TYPES: Final = tuple(name for name in WORDS if name not in NOT_OF_JOBS)
NEWEST, OLDEST = "newest", "oldest"


@dataclass(frozen=True, slots=True)
class Timeline:
    """`next_cursor` leads to the page behind this one, in whichever order it is."""

    entries: Sequence[TimelineEntry]
    wanted: EventFilter
    next_cursor: str | None

    @property
    def order(self) -> str:
        return NEWEST if self.wanted.is_newest_first else OLDEST

    @property
    def is_filtered(self) -> bool:
        return bool(self.wanted.event_type or self.wanted.node_id)


async def wanted_events(
    type: Annotated[str, Query()] = "",
    node: Annotated[str, Query(max_length=200)] = "",
    order: Annotated[str, Query()] = NEWEST,
    cursor: Annotated[int | None, Query(ge=0, lt=2**63)] = None,
) -> EventFilter:
    """As it is in the address."""
    event_type = type if type in TYPES else None
    return EventFilter(event_type, node.strip() or None, is_newest_first=order != OLDEST, cursor=cursor)


SelectedEvents = Annotated[EventFilter, Depends(wanted_events)]


async def timeline_page(conn: Connection, job: Mapping[str, Any], wanted: EventFilter) -> Timeline:
    rows = await find_events(conn, job, wanted, limit=PAGE_SIZE + 1)
    entries = [entry_of(row) for row in rows[:PAGE_SIZE]]
    return Timeline(entries, wanted, str(entries[-1].event_id) if len(rows) > PAGE_SIZE else None)


@router.get("/jobs/{job_id}/timeline", dependencies=[READERS_OF_OWN])
async def show_timeline(job: ShownJob, page: Shown, conn: Conn, wanted: SelectedEvents) -> Response:
    mark = await mark_of(conn, job)
    if (answer := unchanged(page, mark)) is not None:
        return answer
    timeline = await timeline_page(conn, job, wanted)
    return page.render(
        "timeline.html",
        {
            "job_id": str(job["job_id"]),
            "workflow_id": job["workflow_id"],
            "timeline": timeline,
            "types": TYPES,
            "icons": ICONS,
            "mark": mark,
        },
    )
