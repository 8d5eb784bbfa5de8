"""Rows as the bodies that show them: secrets hidden, durations reckoned."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from dagmaster.model.redact import redact
from dagmaster.model.standing import JobStanding
from dagmaster.model.states import NodeStatus, read_ended_by
from dagmaster.schemas.jobs import JobReply, JobSummary, NodeCounts, NodeReply

Row = Mapping[str, Any]


def job_summary(row: Row) -> JobSummary:
    return JobSummary(**_job_fields(row))


def job_reply(row: Row) -> JobReply:
    """Of a row of `get_whole_job`."""
    shown = _job_fields(row)
    for name in ("input_params", "result_data", "callback_url"):
        shown[name] = redact(row[name])
    shown["metadata"] = redact({key: value for key, value in row["metadata"].items() if key != "removal"})
    shown["nodes"] = [node_reply(row["job_id"], node) for node in row["nodes"] or ()]
    return JobReply(**shown, summary=node_counts(row["counts"] or ()))


def _job_fields(row: Row) -> dict[str, Any]:
    return {
        **row,
        "error_message": redact(row["error_message"]),
        "submitted_by": row["submitted_by"] or None,
        "duration_seconds": seconds_between(row["started_at"], row["completed_at"]),
    }


def node_reply(job_id: int, row: Row) -> NodeReply:
    return NodeReply(
        **{
            **row,
            "job_id": job_id,
            "ended_by": read_ended_by(NodeStatus(row["status"]), row["ended_by"]),
            "output": redact(row.get("output")),
            "error_message": redact(row["error_message"]),
            "last_error": redact(row["last_error"]),
            "duration_seconds": seconds_between(row["started_at"], row["completed_at"]),
        }
    )


def node_counts(rows: Iterable[Row]) -> NodeCounts:
    counts: dict[str, int] = {}
    for row in rows:
        counts[row["status"]] = counts.get(row["status"], 0) + row["nodes"]
    return NodeCounts(total=sum(counts.values()), **counts)


def standing_counts(job: JobStanding) -> NodeCounts:
    """Of its own nodes, of the children of its fan-outs, and of what its tasks have added."""
    own = [{"status": node.status, "nodes": 1} for node in job.nodes.values()]
    fans = [node.fan for node in job.nodes.values() if node.fan is not None]
    children = [{"status": status, "nodes": number} for fan in fans for status, number in fan.counts.items()]
    added = [
        {"status": status, "nodes": number} for node in job.nodes.values() for status, number in node.added.items()
    ]
    return node_counts([*own, *children, *added])


def seconds_between(start: datetime | str | None, end: datetime | str | None) -> float | None:
    """Up to now for what has not ended."""
    if start is None:
        return None
    return round(((_time(end) if end else datetime.now(UTC)) - _time(start)).total_seconds(), 3)


def _time(value: datetime | str) -> datetime:
    """Times inside of JSON are texts."""
    return datetime.fromisoformat(value) if isinstance(value, str) else value
