"""The timeline of a job, as a page and as a tab of the job."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Query, Response

from dagmaster.model.timeline import WORDS
from dagmaster.schemas.timeline import TimelineEntry
from dagmaster.store.connect import Connection
from dagmaster.store.events import EventFilter, find_events
from dagmaster.web.access import READERS_OF_OWN
from dagmaster.web.services import Conn
from dagmaster.web.ui.pages import Shown, ShownJob, mark_of, unchanged
from dagmaster.web.views import timeline_entry

router = APIRouter(prefix="/ui", include_in_schema=False)

PAGE_SIZE: Final = 100
ICONS: Final = {"success": "check-circle", "failure": "x-octagon", "warning": "alert-triangle", "info": "circle"}
NOT_OF_JOBS: Final = frozenset({"command", "schedule_missed", "orchestrator_cycle"})
TYPES: Final = tuple(name for name in WORDS if name not in NOT_OF_JOBS)
NEWEST, OLDEST = "newest", "oldest"


@dataclass(frozen=True, slots=True)
class Timeline:
    """`next_cursor` is for the next page in the selected order."""

    entries: Sequence[TimelineEntry]
    filter: EventFilter
    next_cursor: str | None

    @property
    def order(self) -> str:
        return NEWEST if self.filter.is_newest_first else OLDEST

    @property
    def is_filtered(self) -> bool:
        return bool(self.filter.event_type or self.filter.node_id)


async def event_filter(
    type: Annotated[str, Query()] = "",
    node: Annotated[str, Query(max_length=200)] = "",
    order: Annotated[str, Query()] = NEWEST,
    cursor: Annotated[int | None, Query(ge=0, lt=2**63)] = None,
) -> EventFilter:
    """From the query string."""
    event_type = type if type in TYPES else None
    return EventFilter(event_type, node.strip() or None, is_newest_first=order != OLDEST, cursor=cursor)


SelectedEvents = Annotated[EventFilter, Depends(event_filter)]


async def timeline_page(conn: Connection, job: Mapping[str, Any], filter: EventFilter) -> Timeline:
    rows = await find_events(conn, job, filter, limit=PAGE_SIZE + 1)
    entries = [timeline_entry(row) for row in rows[:PAGE_SIZE]]
    return Timeline(entries, filter, str(entries[-1].event_id) if len(rows) > PAGE_SIZE else None)


@router.get("/jobs/{job_id}/timeline", dependencies=[READERS_OF_OWN])
async def show_timeline(job: ShownJob, page: Shown, conn: Conn, filter: SelectedEvents) -> Response:
    mark = await mark_of(conn, job)
    if (answer := unchanged(page, mark)) is not None:
        return answer
    timeline = await timeline_page(conn, job, filter)
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
