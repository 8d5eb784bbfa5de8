"""The outcome of a job as values that are easy to compare."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, Self

from dagmaster.ids import JobId
from dagmaster.model.states import EndedBy
from dagmaster.store.connect import Connection
from dagmaster.store.events import list_events
from dagmaster.store.jobs import get_job
from dagmaster.store.nodes import UNLIMITED, list_job_nodes

PAGE = 1000
COLUMNS = ("node_id", "status", "output", "error_message", "parent_node_id", "started_at", "completed_at")

AttemptStatus = Literal["dispatched", "running", "completed", "failed", "lost", "given_back"]
Event = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt at a node; attempts count from 1."""

    number: int
    status: AttemptStatus = "dispatched"
    error: str | None = None
    error_type: str | None = None
    worker_id: str | None = None
    duration_ms: int | None = None
    dispatched_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """The columns of a node, in their order. `parent` is the fan-out or the node that added this one, if any."""

    node_id: str
    status: str
    output: Any = None
    error: str | None = None
    parent: str | None = None
    started_at: datetime | None = None
    completed_at: datetime | None = None

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Self:
        return cls(*(row[column] for column in COLUMNS))


@dataclass(frozen=True, slots=True)
class Record:
    job: Mapping[str, Any]
    nodes: Mapping[str, NodeRecord] = field(default_factory=dict)
    timeline: list[Event] = field(default_factory=list)


async def read_record(conn: Connection, job_id: JobId) -> Record:
    rows = await list_job_nodes(conn, job_id, with_children=True, inline_bytes=UNLIMITED)
    timeline: list[Event] = []
    while page := await list_events(conn, job_id, after=timeline[-1]["event_id"] if timeline else 0, limit=PAGE):
        timeline += page
    return Record(await get_job(conn, job_id), {row["node_id"]: NodeRecord.of(row) for row in rows}, timeline)


def attempts_of(timeline: Iterable[Event], node_id: str) -> list[Attempt]:
    """From the timeline, because the attempts of lost workers have no report."""
    attempts: dict[int, dict[str, Any]] = {}
    for event in timeline:
        if event["node_id"] == node_id and event["task_id"] and (fields := _fields_of(event)):
            number = int(event["task_id"].rpartition("_")[2]) + 1
            attempts.setdefault(number, {}).update(fields)
    return [Attempt(number, **fields) for number, fields in sorted(attempts.items())]


def _fields_of(event: Event) -> dict[str, Any]:
    data, at = event["event_data"] or {}, event["created_at"]
    match event["event_type"]:
        case "node_dispatched":
            return {"dispatched_at": at}
        case "node_started":
            return {"status": "running", "worker_id": data.get("worker_id"), "started_at": at}
        case "node_completed":
            return {"status": "completed", "duration_ms": event["duration_ms"], "ended_at": at}
        case "node_failed":
            ended_by = data.get("ended_by")
            status = ended_by if ended_by in (EndedBy.LOST, EndedBy.GIVEN_BACK) else "failed"
            error = {"error": event["error_message"] or "", "error_type": data.get("error_type")}
            return {"status": status, "duration_ms": event["duration_ms"], "ended_at": at, **error}
        case _:
            return {}
