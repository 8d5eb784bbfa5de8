"""Accept reports on attempts that are executed outside of workers."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol

import orjson
import psycopg

from dagmaster.engine.messages import TaskCheckpoint, TaskCompleted, TaskFailed
from dagmaster.errors import Invalid, TaskOver, UnknownTask
from dagmaster.ids import JobId, TaskId, WorkerId
from dagmaster.model.states import NODE_IN_FLIGHT
from dagmaster.snowflakes import new_id
from dagmaster.store.connect import Connection, Row, encode_json, encode_rows
from dagmaster.store.mail_codec import encode, mail_values
from dagmaster.store.statements import run

# The defaults of a checkpoint.
CHECKPOINT: Mapping[str, Any] = {
    "phase_index": None,
    "phase_total": None,
    "progress_current": None,
    "progress_total": None,
    "progress_message": None,
    "artifacts_total": None,
    "memory_bytes": None,
    "disk_bytes": None,
    "error_count": 0,
    "is_final": False,
}


async def take_result(conn: Connection, job_id: JobId, report: TaskCompleted | TaskFailed) -> bool:
    """Mail the result to the job's owner; False if it repeats an earlier report.

    Raises TaskOver if the attempt has ended otherwise: the report is stored and noted, and changes nothing. Raises
    UnknownTask if it never existed. Do not call it in a transaction, whose rollback would lose the stored report.
    """
    values = mail_values(encode(job_id, report))
    if await (await run(conn, "take_result", values)).fetchone() is not None:
        return True
    node = await _find(conn, values)
    before = await (await run(conn, "find_report", values)).fetchone()
    if before is not None and before["is_same"] and not before["is_ignored"]:
        return False
    message, reason = _why_over(node, report.task_id)
    await run(conn, "keep_late_result", {**values, "reason": reason})
    raise TaskOver(message)


async def begin_elsewhere(conn: Connection, task_id: TaskId, worker_id: WorkerId) -> bool:
    """Mark the attempt as running; returns whether it was not before. Raises as `save_progress` does."""
    values = {**_key(task_id), "worker_id": worker_id}
    row = await _apply(conn, "begin_elsewhere", values)
    return bool(row["is_new"])


async def save_progress(
    conn: Connection,
    task_id: TaskId,
    *,
    current: float | None,
    total: float | None,
    percent: float | None,
    message: str | None,
    worker_id: WorkerId | None,
    reporter: WorkerId,
) -> None:
    """Never changes how an attempt ended. Raises TaskOver if it has ended, UnknownTask if it never existed.

    `worker_id` is None if the report names no worker; a later one may.
    """
    values = {
        **_key(task_id),
        "progress_current": current,
        "progress_total": total,
        "progress_percent": percent,
        "progress_message": message,
        "worker_id": worker_id,
        "reporter": reporter,
    }
    await _apply(conn, "save_progress", values)


class ReportedProgress(Protocol):
    """Progress as a handler reports it."""

    @property
    def current(self) -> float: ...
    @property
    def total(self) -> float | None: ...
    @property
    def percent(self) -> float | None: ...
    @property
    def message(self) -> str: ...


async def tell_progress(conn: Connection, worker_id: WorkerId, task_id: TaskId, progress: ReportedProgress) -> None:
    """Save the progress of a task that this worker holds; otherwise it is ignored."""
    values = {
        "task_id": task_id,
        "worker_id": worker_id,
        "progress_current": progress.current,
        "progress_total": progress.total,
        "progress_percent": progress.percent,
        "progress_message": progress.message or None,
    }
    await run(conn, "tell_progress", values)


async def save_checkpoint(
    conn: Connection, task_id: TaskId, fields: Mapping[str, Any], *, is_claimed: bool = False
) -> int:
    """Returns the id of the checkpoint; `fields` are columns of dag_checkpoints. Raises as `save_progress` does, and
    TaskOver if the task is claimed but no longer held by this worker.
    """
    job_id, node_id = parts_of(task_id)
    columns = {**CHECKPOINT, **fields}
    state = orjson.dumps(columns["state_data"]) if columns["state_data"] is not None else None
    details = {name: columns[name] for name in ("phase_index", "phase_total", "is_final")}
    message = TaskCheckpoint(
        node_id, task_id, columns["worker_id"], datetime.now(UTC), columns["phase_name"], state, details
    )
    artifacts, checkpoint_id = columns["artifacts_completed"], new_id()
    values = {
        **columns,
        **mail_values(encode(job_id, message)),
        "checkpoint_id": checkpoint_id,
        "is_claimed": is_claimed,
        "artifacts_completed": encode_json(artifacts) if artifacts is not None else None,
    }
    await _apply(conn, "save_checkpoint", values)
    return checkpoint_id


async def add_nodes(conn: Connection, worker_id: WorkerId, task_id: TaskId, slices: Sequence[bytes]) -> None:
    """Mail the nodes that a task adds to its job to the owner. Raises as `save_progress` does."""
    rows = encode_rows([{"place": number, "slice": orjson.Fragment(content)} for number, content in enumerate(slices)])
    if rows is not None:
        try:
            await _apply(conn, "add_nodes", {**_key(task_id), "worker_id": worker_id, "slices": rows})
        except psycopg.DataError as error:
            raise Invalid(f"the added nodes cannot be stored: {error.diag.message_primary}") from error


async def discard_checkpoint(
    conn: Connection, worker_id: WorkerId, task_id: TaskId, checkpoint_id: int, reason: str
) -> Row | None:
    """Discard a checkpoint that its worker could not use; returns the newest valid one before it, if any."""
    values = {**_key(task_id), "worker_id": worker_id, "checkpoint_id": checkpoint_id, "reason": reason}
    return await (await run(conn, "discard_checkpoint", values)).fetchone()


async def check_task_exists(conn: Connection, task_id: TaskId) -> None:
    """Raises UnknownTask. An ended attempt exists."""
    await _find(conn, _key(task_id))


async def _apply(conn: Connection, name: str, values: Mapping[str, Any]) -> Row:
    row = await (await run(conn, name, values)).fetchone()
    if row is not None:
        return row
    claimer = values["worker_id"] if values.get("is_claimed") else None
    message, _ = _why_over(await _find(conn, values), values["task_id"], claimer)
    raise TaskOver(message)


def _why_over(node: Row, task_id: str, claimer: str | None = None) -> tuple[str, str]:
    """The reason for the reporter and for the timeline. `claimer` is the worker that claimed the task."""
    if node["task_id"] != task_id:
        now = f"the current attempt is {node['task_id']}" if node["task_id"] else f"its node is {node['status']}"
        return f"task {task_id} is over; {now}", "the attempt was superseded"
    if node["status"] not in NODE_IN_FLIGHT:
        return f"task {task_id} is over; its node is {node['status']}", "the node has ended"
    if claimer is not None:
        return f"task {task_id} is no longer held by worker {claimer}", "the worker does not hold it"
    return (
        f"task {task_id} was reported before with another result",
        "the attempt was reported before with another result",
    )


async def _find(conn: Connection, values: Mapping[str, Any]) -> Row:
    row = await (await run(conn, "find_task", values)).fetchone()
    attempt = int(str(values["task_id"]).rpartition("_")[2])
    # Between two attempts a node has no task, but the earlier ones existed.
    if row is None or attempt >= row["retry_count"] + (row["task_id"] is not None):
        raise UnknownTask(f"there is no task {values['task_id']}")
    return row


def _key(task_id: TaskId) -> Row:
    """`{job_id}_{node_id}_{attempt}`; raises UnknownTask for anything else."""
    job, _, rest = task_id.partition("_")
    node, _, attempt = rest.rpartition("_")
    is_number = job.isascii() and job.isdecimal() and attempt.isascii() and attempt.isdecimal()
    if not is_number or not node or len(attempt) > 9 or int(job) >= 2**63 or "\0" in task_id:
        raise UnknownTask(f"there is no task {task_id[:128]!r}")
    return {"task_id": task_id, "job_id": JobId(int(job)), "node_id": node}


def parts_of(task_id: TaskId) -> tuple[JobId, str]:
    """The job and the node of an attempt; raises UnknownTask for an invalid id."""
    key = _key(task_id)
    return key["job_id"], key["node_id"]
