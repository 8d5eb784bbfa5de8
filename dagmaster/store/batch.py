"""Write a batch of change sets in one fenced transaction."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Any

import orjson
import psycopg

from dagmaster.engine.change_set import ChangeSet, Dispatch, Event, Result
from dagmaster.engine.state import Checkpoint, JobState, NodeState
from dagmaster.engine.values import StoredValue, Value, size_of
from dagmaster.errors import Conflict
from dagmaster.ids import JobId, WorkerId
from dagmaster.model.added_nodes import AddedGroup
from dagmaster.model.table_references import has_references, tables_in
from dagmaster.store.connect import Connection, encode_ids, encode_rows, encode_texts, storable
from dagmaster.store.statements import Statement, compose, fetch_statement

OWNERSHIP_LOST = "DM001"
ROWS_DIFFER = "DM002"


class OwnershipLost(Conflict):
    """Another orchestrator owns some of these jobs."""

    def __init__(self, job_ids: frozenset[JobId]) -> None:
        super().__init__()
        self.job_ids = job_ids


class RowsDiffer(Conflict):
    """The rows in the database differ from the owner's memory."""


@dataclass(slots=True)
class Batch:
    """Change sets to commit together. `local` are dispatches that a worker in this process claims at once.

    `mail` was read from the table; `delivered` mail came with notifications, and has their payload.
    """

    owner_id: str
    worker_id: WorkerId | None = None
    change_sets: list[tuple[ChangeSet, int]] = field(default_factory=list)
    mail: list[int] = field(default_factory=list)
    delivered: dict[int, str] = field(default_factory=dict)
    delivered_jobs: dict[int, str] = field(default_factory=dict)
    local: set[str] = field(default_factory=set)
    calls_workers: bool = False

    @property
    def has_delivered(self) -> bool:
        return bool(self.delivered or self.delivered_jobs)

    def close_mail(self, mail_id: int, payload: str | None, *, is_new_job: bool) -> None:
        """`payload` is that of the notification that brought the mail: the commit checks that the row is the same."""
        if payload is None:
            self.mail.append(mail_id)
        elif is_new_job:
            self.delivered_jobs[mail_id] = payload
        else:
            self.delivered[mail_id] = payload


async def commit(conn: Connection, batch: Batch) -> None:
    """Commit the whole batch or nothing."""
    try:
        copies = _copies_stored(batch)
        values = _values(batch, copies=copies)
        statement = _statement(values, copies=copies, calls_workers=batch.calls_workers)
        await fetch_statement(conn, statement, values)
    except psycopg.Error as error:
        if error.sqlstate == OWNERSHIP_LOST:
            detail = error.diag.message_detail or ""
            raise OwnershipLost(frozenset(JobId(int(job_id)) for job_id in detail.split(","))) from error
        if error.sqlstate == ROWS_DIFFER:
            raise RowsDiffer(str(error)) from error
        raise


def settle_versions(batch: Batch) -> None:
    """Update the versions in memory after the commit succeeded."""
    for changes, _ in batch.change_sets:
        changes.job.version += changes.job_touched
        for node in changes.touched.values():
            node.version += 1
        changes.release()


# The parts of the statement, by the rows that they write.
PARTS = {
    "new_nodes": "new_nodes",
    "nodes": "node_rows",
    "jobs": "job_rows",
    "results": "result_rows",
    "closed_waiting": "closed_waiting",
    "closed_running": "closed_running",
    "waiting": "waiting",
    "running": "running",
    "holds": "hold_rows",
    "cancelled_children": "cancelled_children",
    "groups": "group_rows",
    "dependencies": "dependency_rows",
    "uses": "use_rows",
    "passed": "passed_rows",
    "events": "event_rows",
    "mail": "mail_rows",
    "delivered": "delivered_mail",
    "delivered_jobs": "delivered_jobs",
}
CHECKED = ("job_rows", "node_rows", "delivered_mail", "delivered_jobs")
# Variants for batches that copy values within the database. They have more subqueries, and the server plans each
# subquery for every batch, used or not.
OF_STORED = {"node_rows": "node_rows_of_stored", "job_rows": "job_rows_of_stored"}


def _copies_stored(batch: Batch) -> bool:
    """Whether the batch copies large values within the database or saves checkpoints."""
    return any(
        (changes.job.result is not None and changes.job.result.parts)
        or any(node.checkpoint is not None or isinstance(node.output, StoredValue) for node in changes.touched.values())
        for changes, _ in batch.change_sets
    )


def _statement(values: Mapping[str, Any], *, copies: bool, calls_workers: bool) -> Statement:
    """Use only the parts with rows: an empty part costs as much as a small one."""
    parts = tuple(part for rows, part in PARTS.items() if values[rows] is not None)
    return statement_of(
        parts, copies=copies, moves_versions=values["moved_ids"] is not None, calls_workers=calls_workers
    )


@cache
def statement_of(parts: tuple[str, ...], *, copies: bool, moves_versions: bool, calls_workers: bool) -> Statement:
    checks = tuple(f"check_{part}" for part in CHECKED if part in parts)
    calls = ("call_workers",) if calls_workers else ()
    locks = {"held": "held", "versions_held": "versions_held" if moves_versions else "no_versions_held"}
    forms = {part: OF_STORED.get(part, part) if copies else part for part in parts}
    return compose(locks | forms, ("check_held", *checks, *calls))


def _values(batch: Batch, *, copies: bool) -> dict[str, Any]:
    change_sets = [changes for changes, _ in batch.change_sets]
    jobs = [_job_row(changes) for changes in change_sets if changes.job_touched]
    nodes = [_node_row(changes.job, node) for changes in change_sets for node in changes.touched.values()]
    tasks = [(changes.job, dispatch) for changes in change_sets for dispatch in changes.dispatches.values()]
    return {
        "owner_id": batch.owner_id,
        "worker_id": batch.worker_id,
        "job_ids": encode_ids([changes.job.job_id for changes in change_sets]),
        "owner_epochs": encode_ids([epoch for _, epoch in batch.change_sets]),
        "fence_count": len(batch.change_sets),
        "jobs": encode_rows(jobs),
        "moved_ids": encode_ids(
            [changes.job.job_id for changes in change_sets if changes.job_touched and changes.job.has_version]
        ),
        "job_count": len(jobs),
        "nodes": encode_rows(nodes) or ("[]" if jobs and copies else None),  # The result's parts are looked up in it.
        "node_count": len(nodes),
        "new_nodes": encode_rows(
            [_new_node_row(changes.job, node, changes) for changes in change_sets for node in changes.created.values()]
        ),
        "results": encode_rows(
            [_result_row(changes, result) for changes in change_sets for result in changes.results.values()]
        ),
        "closed_waiting": encode_texts([task_id for changes in change_sets for task_id in changes.closed_waiting]),
        "closed_running": encode_texts([task_id for changes in change_sets for task_id in changes.closed_running]),
        "holds": encode_rows(
            [
                {"job_id": changes.job.job_id, "held": changes.holds_tasks}
                for changes in change_sets
                if changes.holds_tasks is not None
            ]
        ),
        "waiting": encode_rows([_task_row(job, task) for job, task in tasks if task.task_id not in batch.local]),
        "running": encode_rows([_task_row(job, task) for job, task in tasks if task.task_id in batch.local]),
        "groups": encode_rows([_group_row(changes, group) for changes in change_sets for group in changes.groups]),
        "dependencies": encode_rows(
            [{"job_id": changes.job.job_id, **asdict(edge)} for changes in change_sets for edge in changes.dependencies]
        ),
        "cancelled_children": encode_rows(
            [
                {"job_id": changes.job.job_id, "task_id": task_id}
                for changes in change_sets
                for task_id in changes.cancelled_children
            ]
        ),
        "uses": encode_rows([row for changes in change_sets for row in _use_rows(changes)]),
        "passed": encode_rows([row for changes in change_sets for row in _passed_rows(changes)]),
        "events": encode_rows([_event_row(event) for changes in change_sets for event in changes.events]),
        "mail": encode_ids(batch.mail),
        "delivered": encode_texts(list(batch.delivered.values())),
        "delivered_ids": encode_ids(list(batch.delivered)),
        "delivered_count": len(batch.delivered),
        "delivered_jobs": encode_texts(list(batch.delivered_jobs.values())),
        "delivered_job_ids": encode_ids(list(batch.delivered_jobs)),
        "delivered_job_count": len(batch.delivered_jobs),
    }


def _json(value: bytes | None) -> orjson.Fragment | None:
    return orjson.Fragment(value) if value is not None else None


def _output(value: Value | None, node_id: str | None = None) -> dict[str, Any]:
    """The value itself, or its location; by default that is the node's own row."""
    if not isinstance(value, StoredValue):
        return {"output": _json(value)}
    if value.mail_id is not None:
        return {"output_mail": value.mail_id}
    return {"output_node": value.node_id or node_id}


def _without_nulls(row: dict[str, Any]) -> dict[str, Any]:
    """The server parses each key, and a missing key is null too."""
    return {key: value for key, value in row.items() if value is not None}


def _event_row(event: Event) -> dict[str, Any]:
    """Spelled out for speed: there are more events than other rows."""
    row: dict[str, Any] = {
        "job_id": event.job_id,
        "event_type": event.event_type,
        "event_status": event.event_status,
        "created_at": event.created_at,
        "source_app": event.source_app,
    }
    if event.node_id is not None:
        row["node_id"] = event.node_id
        if event.task_id is not None:
            row["task_id"] = event.task_id
    if event.event_data is not None:
        row["event_data"] = event.event_data
    if event.error_message is not None:
        row["error_message"] = event.error_message
    if event.duration_ms is not None:
        row["duration_ms"] = event.duration_ms
    if event.checkpoint_name is not None:
        row["checkpoint_name"] = event.checkpoint_name
    return row


def _job_row(changes: ChangeSet) -> dict[str, Any]:
    job = changes.job
    row = {
        "job_id": job.job_id,
        "version": job.version,
        "status": job.status,
        "started_at": job.started_at,
        "completed_at": job.completed_at,
        "error_message": job.error,
        "failed_node": job.failed_node,
        "ended_by": job.ended_by,
        "deadline_at": job.deadline_at,
        "result_data": _json(job.result.data) if job.result is not None else None,
        "paused_at": job.paused_at,
        "paused_by": job.paused_by,
        "resumed_at": job.resumed_at,
        "idle_seconds": job.idle_seconds,
        "reopened": changes.reopened,
        "signals": job.signals or None,
    }
    if job.result is not None and job.result.parts:
        row["result_parts"] = [
            {"name": name, "mail_id": part.mail_id, "node_id": part.node_id} for name, part in job.result.parts.items()
        ]
    return row


# Mostly null columns of a node, and the attributes behind them.
_RARE_COLUMNS = (
    ("error_message", "error"),
    ("not_before", "not_before"),
    ("queue", "queue"),
    ("result_of", "result_of"),
    ("started_at", "started_at"),
    ("completed_at", "completed_at"),
    ("ended_by", "ended_by"),
)


def _node_row(job: JobState, node: NodeState) -> dict[str, Any]:
    """Spelled out for speed, like an event's row: each step writes two."""
    row: dict[str, Any] = {
        "job_id": job.job_id,
        "node_id": node.node_id,
        "version": node.version,
        "status": node.status,
        "retry_count": node.attempt,
        "max_retries": node.max_retries,
    }
    if node.dispatched_at is not None:
        row["task_id"] = job.task_id(node)
        row["dispatched_at"] = node.dispatched_at
    if node.times_lost:
        row["times_lost"] = node.times_lost
    if node.params is not None:
        row["input_params"] = orjson.Fragment(node.params)
    if node.definition is not None:
        row["definition"] = orjson.Fragment(node.definition)
    if node.output is not None:
        row |= _output(node.output, node.node_id)
        row["output_bytes"] = size_of(node.output)
    for column, attribute in _RARE_COLUMNS:
        if (value := getattr(node, attribute)) is not None:
            row[column] = value
    if job.result is not None and node.node_id in job.result.parts:
        row["is_part"] = True
    return row if node.checkpoint is None else row | _checkpoint_columns(node.checkpoint)


def _checkpoint_columns(checkpoint: Checkpoint) -> dict[str, Any]:
    columns: dict[str, Any] = {"checkpoint_phase": checkpoint.phase, "checkpoint_saved_at": checkpoint.saved_at}
    if isinstance(checkpoint.data, StoredValue):
        return columns | {"checkpoint_mail": checkpoint.data.mail_id}
    return columns | {"checkpoint_data": _json(checkpoint.data or b"{}")}


def _new_node_row(job: JobState, node: NodeState, changes: ChangeSet) -> dict[str, Any]:
    return _node_row(job, node) | {
        "parent_node_id": node.parent or node.added_by,
        "fan_out_index": node.index,
        "fan_out_item_key": storable(node.item_key) if node.item_key is not None else None,
        "fan_out_item_box": node.item_box,
        "created_at": changes.now,
    }


def _group_row(changes: ChangeSet, group: AddedGroup) -> dict[str, Any]:
    return {"job_id": changes.job.job_id, "created_at": changes.now, **asdict(group)}


def _result_row(changes: ChangeSet, result: Result) -> dict[str, Any]:
    node = changes.job.nodes.get(result.node_id)
    is_in_node = node is not None and node.output is result.output and isinstance(node.output, StoredValue)
    return _without_nulls(
        {
            "task_id": result.task_id,
            "job_id": result.job_id,
            "node_id": result.node_id,
            "status": result.status,
            **(_output(result.output) if not is_in_node else {}),  # A large output is written once, to the node.
            "error_message": result.error_message,
            "worker_id": result.worker_id,
            "execution_duration_ms": result.execution_duration_ms,
            "reported_at": result.reported_at,
            "error_type": result.error_type,
            "details": result.details,
            "ended_by": result.ended_by,
        }
    )


def _use_rows(changes: ChangeSet) -> Iterator[dict[str, Any]]:
    """The tables that parameters of tasks and definitions of added nodes refer to."""
    texts = {node.node_id: node.definition for node in changes.created.values() if node.definition is not None}
    texts |= {d.node.node_id: d.node.params for d in changes.dispatches.values() if d.node.params is not None}
    for node_id, json in texts.items():
        for object_id in tables_in(json):
            yield {"object_id": object_id, "job_id": changes.job.job_id, "node_id": node_id}


def _passed_rows(changes: ChangeSet) -> Iterator[dict[str, Any]]:
    """Outputs that may refer to tables; large outputs are not decoded."""
    for node in changes.touched.values():
        if node.output is not None and (isinstance(node.output, StoredValue) or has_references(node.output)):
            yield {"job_id": changes.job.job_id, "node_id": node.node_id}


def _task_row(job: JobState, dispatch: Dispatch) -> dict[str, Any]:
    spec = dispatch.node.task
    return _without_nulls(
        {
            "task_id": dispatch.task_id,
            "job_id": job.job_id,
            "node_id": dispatch.node.node_id,
            "retry_count": dispatch.attempt,
            "queue": dispatch.node.task_queue,
            "priority": job.priority,
            "job_started_at": job.started_at,
            "handler": spec.handler,
            "timeout_seconds": spec.timeout_seconds,
            "correlation_id": job.correlation_id,
            "trace_parent": dispatch.trace_parent or job.trace_parent,
            "dispatched_at": dispatch.at,
            "held": job.is_paused,
        }
    )
