"""Events as timeline entries: in words, with secrets redacted."""

from collections.abc import Mapping, Sequence
from typing import Any

from dagmaster.ids import JobId, NodeId
from dagmaster.model.redact import redact
from dagmaster.model.timeline import describe
from dagmaster.schemas.timeline import AuditEntry, TimelineEntry, TimelineReply, TimelineSummary
from dagmaster.store.connect import Connection
from dagmaster.store.events import list_events, summarise_events

Row = Mapping[str, Any]


def entry_of(event: Row) -> TimelineEntry:
    return TimelineEntry(**_fields(event))


def audit_entry(event: Row) -> AuditEntry:
    data = event["event_data"] or {}
    return AuditEntry(**_fields(event), actor=data.get("actor") or None, command=data.get("command"))


def _fields(event: Row) -> dict[str, Any]:
    visible = {**event, "event_data": redact(event["event_data"]), "error_message": redact(event["error_message"])}
    return {
        **visible,
        "timestamp": event["created_at"],
        "status": event["event_status"],
        "message": describe(visible),
        "data": visible["event_data"],
    }


async def timeline_of(
    conn: Connection, job_id: JobId, node_id: NodeId | None, types: Sequence[str], *, after: int, limit: int
) -> TimelineReply:
    events = await list_events(conn, job_id, node_id=node_id, event_types=types, after=after, limit=limit + 1)
    summary = await summarise_events(conn, job_id, node_id)
    page = events[:limit]
    has_more = len(events) > limit
    return TimelineReply(
        job_id=str(job_id),
        node_id=node_id,
        events=[entry_of(event) for event in page],
        summary=_summary(summary),
        limit=limit,
        has_more=has_more,
        next_after=str(page[-1]["event_id"]) if has_more else None,
    )


def _summary(row: Row) -> TimelineSummary:
    first, last = row["first_event"], row["last_event"]
    seconds = round((last - first).total_seconds(), 3) if first is not None else None
    return TimelineSummary(**row, duration_seconds=seconds)
