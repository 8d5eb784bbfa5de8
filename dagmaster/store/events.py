"""Read the timeline of a job, the audit log, and new events."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from dagmaster.ids import JobId, NodeId
from dagmaster.model.states import EVENT_ALIASES
from dagmaster.store.connect import Connection, Row, encode_rows
from dagmaster.store.statements import fetch

MAX_EVENT_ID: Final = 2**63 - 1
SLACK: Final = timedelta(minutes=1)  # Events and their job may be stamped by different clocks.


@dataclass(frozen=True, slots=True)
class EventFilter:
    """`cursor` is the event before the first of the page, in its order."""

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
) -> list[Row]:
    """Oldest first, starting after the event `after`."""
    types = [EVENT_ALIASES.get(name, name) for name in event_types] or None
    values = {"job_id": job_id, "node_id": node_id, "event_types": types, "after": after, "limit": limit}
    return await fetch(conn, "list_events", values)


async def find_events(conn: Connection, job: Mapping[str, Any], where: EventFilter, *, limit: int) -> list[Row]:
    first = MAX_EVENT_ID if where.is_newest_first else 0
    values = {
        **asdict(where),
        "job_id": job["job_id"],
        "since": job["created_at"] - SLACK,
        "cursor": first if where.cursor is None else where.cursor,
        "limit": limit,
    }
    return await fetch(conn, "page_events_down" if where.is_newest_first else "page_events_up", values)


async def last_event_of_job(conn: Connection, job: Mapping[str, Any]) -> int:
    [row] = await fetch(conn, "last_event_of_job", {"job_id": job["job_id"], "since": job["created_at"]})
    return int(row["event_id"])


async def count_changes(conn: Connection) -> int:
    """A counter that rises with every event of a job or an asset."""
    [row] = await fetch(conn, "count_changes")
    return int(row["changes"])


async def is_settled(conn: Connection) -> bool:
    [row] = await fetch(conn, "is_settled")
    return bool(row["is_settled"])


async def summarise_events(conn: Connection, job_id: JobId, node_id: NodeId | None = None) -> Row:
    [row] = await fetch(conn, "summarise_events", {"job_id": job_id, "node_id": node_id})
    return row


async def list_audit(conn: Connection, event_types: Sequence[str], *, limit: int, offset: int = 0) -> list[Row]:
    """The audit log: system events without a job."""
    types = [EVENT_ALIASES.get(name, name) for name in event_types] or None
    return await fetch(conn, "view_audit", {"event_types": types, "limit": limit, "offset": offset})


@dataclass(frozen=True, slots=True)
class Position:
    """The read position in a job's timeline: all events up to `after`, and the later ones in `seen`."""

    job_id: JobId
    after: int
    since: datetime
    seen: Sequence[int] = ()


@dataclass(slots=True)
class NewEvents:
    """`job_status` is None if the job was removed. `is_full`: there are more events."""

    job_status: str | None
    events: list[Row]
    is_full: bool = False


async def watched_events(conn: Connection, positions: Sequence[Position], *, page: int) -> list[NewEvents]:
    """The new events of each position, in one statement."""
    watchers = [{"place": number, **asdict(position)} for number, position in enumerate(positions)]
    news: dict[int, NewEvents] = {}
    for row in await fetch(conn, "watched_events", {"watchers": encode_rows(watchers), "page": page}):
        entry = news.setdefault(row["place"], NewEvents(row["job_status"], []))
        if row["event_id"] is not None:
            entry.events.append(row)
    for entry in news.values():
        entry.is_full = len(entry.events) >= page
    return [news[number] for number in range(len(positions))]
