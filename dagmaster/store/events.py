"""Read the timeline of a job, the audit log of the system, and what is new in them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from dagmaster.ids import JobId, NodeId
from dagmaster.model.states import EVENT_ALIASES
from dagmaster.store.connect import Connection, encode_rows
from dagmaster.store.statements import fetch, run

Row = dict[str, Any]

MAX_EVENT_ID: Final = 2**63 - 1
SLACK: Final = timedelta(minutes=1)  # Events may be stamped by another clock than their job.


@dataclass(frozen=True, slots=True)
class EventFilter:
    """`cursor` is the event behind which the page begins, in the order that is wanted."""

    event_type: str | None = None
    node_id: str | None = None
    is_newest_first: bool = True
    cursor: int | None = None


async def list_events(
    conn: Connection,
    job_id: JobId,
    *,
    node_id: NodeId | None = None,
    event_types: Sequence[str] = (),
    after: int = 0,
    limit: int = 1000,
) -> list[dict[str, Any]]:
    """Oldest first, beginning behind the event `after`."""
    types = [EVENT_ALIASES.get(name, name) for name in event_types] or None
    values = {"job_id": job_id, "node_id": node_id, "event_types": types, "after": after, "limit": limit}
    cursor = await run(conn, "list_events", values)
    return await cursor.fetchall()


async def find_events(conn: Connection, job: Mapping[str, Any], wanted: EventFilter, *, limit: int) -> list[Row]:
    newest_first = wanted.is_newest_first
    values = {
        "job_id": job["job_id"],
        "since": job["created_at"] - SLACK,
        "after": wanted.cursor if wanted.cursor is not None and not newest_first else 0,
        "before": wanted.cursor if wanted.cursor is not None and newest_first else MAX_EVENT_ID,
        "node_id": wanted.node_id,
        "event_type": wanted.event_type,
        "limit": limit,
    }
    return await fetch(conn, "page_events_down" if newest_first else "page_events_up", values)


async def last_event_of_job(conn: Connection, job: Mapping[str, Any]) -> int:
    [row] = await fetch(conn, "last_event_of_job", {"job_id": job["job_id"], "since": job["created_at"]})
    return int(row["event_id"])


async def count_changes(conn: Connection) -> int:
    """Rises with every event of a job or of an asset."""
    row = await (await run(conn, "count_changes")).fetchone()
    return int(row["changes"]) if row else 0


async def is_settled(conn: Connection) -> bool:
    row = await (await run(conn, "is_settled")).fetchone()
    return bool(row and row["is_settled"])


async def summarise_events(conn: Connection, job_id: JobId, node_id: NodeId | None = None) -> Row:
    [row] = await fetch(conn, "summarise_events", {"job_id": job_id, "node_id": node_id})
    return row


async def list_audit(conn: Connection, event_types: Sequence[str], *, limit: int, offset: int = 0) -> list[Row]:
    """What was done to the system and to no job."""
    types = [EVENT_ALIASES.get(name, name) for name in event_types] or None
    return await fetch(conn, "view_audit", {"event_types": types, "limit": limit, "offset": offset})


@dataclass(frozen=True, slots=True)
class Position:
    """How far somebody has read a job's timeline: all up to `after`, and those of `seen` behind it."""

    job_id: JobId
    after: int
    since: datetime
    seen: Sequence[int] = ()


@dataclass(slots=True)
class News:
    """`job_status` is None when the job is no longer there. With `is_full` there is more."""

    job_status: str | None
    events: list[Row]
    is_full: bool = False


async def watched_events(conn: Connection, positions: Sequence[Position], *, page: int) -> list[News]:
    """What is new for each of them, in one statement."""
    watchers = [
        {"place": place, "job_id": one.job_id, "after": one.after, "since": one.since, "seen": list(one.seen)}
        for place, one in enumerate(positions)
    ]
    news: dict[int, News] = {}
    for row in await fetch(conn, "watched_events", {"watchers": encode_rows(watchers), "page": page}):
        one = news.setdefault(row["place"], News(row["job_status"], []))
        if row["event_id"] is not None:
            one.events.append(row)
    for one in news.values():
        one.is_full = len(one.events) >= page
    return [news[place] for place in range(len(positions))]
