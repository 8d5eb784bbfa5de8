"""Rows as response bodies: secrets redacted, durations computed, events in words."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

import orjson
from fastapi import Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

from dagmaster.ids import JobId
from dagmaster.model.outcome import NO_CHILDREN, Children, count_outcomes, end_of, outcome_of
from dagmaster.model.progress import JobSnapshot
from dagmaster.model.redact import redact
from dagmaster.model.states import JobStatus, NodeStatus, read_ended_by
from dagmaster.model.timeline import describe
from dagmaster.schemas.jobs import JobReply, JobSummary, NodeCounts, NodeReply
from dagmaster.schemas.timeline import AuditEntry, TimelineEntry
from dagmaster.store.node_counts import NodesOfJob

Row = Mapping[str, Any]
M = TypeVar("M", bound=BaseModel)

# Building a smaller response takes less time than handing it to a thread.
LARGE_BYTES = 256 * 1024
PIECE_BYTES = 256 * 1024


async def answer(make: Callable[[], M], size: int) -> M | Response:
    """Build a large response outside the event loop and send it in pieces. `size` is an estimate in bytes."""
    if size <= LARGE_BYTES:
        return make()
    content = await asyncio.to_thread(lambda: make().model_dump_json().encode())
    headers = {"content-length": str(len(content))}
    return StreamingResponse(_pieces(content), media_type="application/json", headers=headers)


async def _pieces(content: bytes) -> AsyncIterator[bytes]:
    view = memoryview(content)
    for start in range(0, len(content), PIECE_BYTES):
        yield bytes(view[start : start + PIECE_BYTES])


def job_summary(row: Row, tolerated_failures: int = 0) -> JobSummary:
    return JobSummary(**_job_fields(row), tolerated_failures=tolerated_failures)


def job_reply(row: Row, counts: NodesOfJob, value: Any = None, *, has_more: bool = False) -> JobReply:
    """From a row of `get_whole_job`, with the return value of a workflow function."""
    fields = _job_fields(row)
    for name in ("input_params", "result_data"):
        fields[name] = redact(orjson.loads(row[name])) if row[name] is not None else None
    fields["callback_url"] = redact(row["callback_url"])
    fields["metadata"] = redact({key: value for key, value in row["metadata"].items() if key != "removal"})
    fields["nodes"] = [
        node_reply(row["job_id"], node, counts.children.get(node["node_id"])) for node in row["nodes"] or ()
    ]
    summary = counts_reply(counts.counts)
    fields["tolerated_failures"] = summary.failed if row["status"] == JobStatus.COMPLETED else 0
    return JobReply(**fields, value=redact(value), summary=summary, nodes_has_more=has_more)


def _job_fields(row: Row) -> dict[str, Any]:
    return {
        **row,
        "error_message": redact(row["error_message"]),
        "submitted_by": row["submitted_by"] or None,
        "duration_seconds": run_seconds(row),
    }


def node_reply(job_id: JobId, row: Row, children: Children | None = None) -> NodeReply:
    return NodeReply(
        **{
            **row,
            "outcome": outcome_of(row["status"], children or NO_CHILDREN, row["ended_by"]),
            "children": children.counts if children else {},
            "job_id": job_id,
            "ended_by": read_ended_by(NodeStatus(row["status"]), row["ended_by"]),
            "output": redact(row.get("output")),
            "error_message": redact(row["error_message"]),
            "last_error": redact(row["last_error"]),
            "duration_seconds": node_seconds(row, children or NO_CHILDREN),
        }
    )


def timeline_entry(event: Row) -> TimelineEntry:
    return TimelineEntry(**_event_fields(event))


def audit_entry(event: Row) -> AuditEntry:
    data = event["event_data"] or {}
    return AuditEntry(**_event_fields(event), actor=data.get("actor") or None, command=data.get("command"))


def _event_fields(event: Row) -> dict[str, Any]:
    visible = {**event, "event_data": redact(event["event_data"]), "error_message": redact(event["error_message"])}
    return {
        **visible,
        "timestamp": event["created_at"],
        "status": event["event_status"],
        "message": describe(visible),
        "data": visible["event_data"],
    }


def counts_reply(counts: Mapping[str, int]) -> NodeCounts:
    return NodeCounts(total=sum(counts.values()), **counts)


def snapshot_counts(job: JobSnapshot) -> NodeCounts:
    """The counts of the nodes of the definition, of the children of fan-outs, and of nodes added by tasks."""
    return counts_reply(count_outcomes((node.outcome, node.children) for node in job.nodes.values()))


def run_seconds(job: Row) -> float | None:
    """The duration of a job so far, without paused time."""
    if job["started_at"] is None:
        return None
    idle_seconds: float = job["idle_seconds"]
    return round(max(_seconds(job["started_at"], job["paused_at"] or job["completed_at"]) - idle_seconds, 0.0), 3)


def node_seconds(node: Row, children: Children = NO_CHILDREN) -> float | None:
    """How long the newest attempt ran; a fan-out lasts until the last of its children has ended."""
    if node["status"] == NodeStatus.SKIPPED:
        return None
    completed_at = _time(node["completed_at"]) if node["completed_at"] is not None else None
    return seconds_between(node["started_at"], end_of(completed_at, children))


def seconds_between(start: datetime | str | None, end: datetime | str | None) -> float | None:
    """Up to now for nodes that have not ended."""
    return None if start is None else round(_seconds(start, end), 3)


def _seconds(start: datetime | str, end: datetime | str | None) -> float:
    return ((_time(end) if end else datetime.now(UTC)) - _time(start)).total_seconds()


def _time(value: datetime | str) -> datetime:
    """Times inside JSON are strings."""
    return datetime.fromisoformat(value) if isinstance(value, str) else value
