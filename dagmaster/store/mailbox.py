"""What has arrived for an owner's jobs, as messages of the engine."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from dagmaster.engine.messages import (
    ApprovalDecision,
    Cancel,
    Load,
    ManualRetry,
    Message,
    Pause,
    Resume,
    SignalSent,
    TaskCheckpoint,
    TaskCompleted,
    TaskFailed,
    TaskLost,
    TasksAdded,
    TaskStarted,
)
from dagmaster.engine.results import REFUSED
from dagmaster.engine.values import StoredValue, Value
from dagmaster.errors import Invalid
from dagmaster.ids import JobId
from dagmaster.model.dynamic_nodes import read_slice
from dagmaster.store.connect import Connection, encode_rows
from dagmaster.store.statements import fetch, run

MAX_SLICES = 8
# Larger values stay in the mailbox until they are written.
INLINE_BYTES = 64 * 1024
MAX_BYTES = 16 * 1024 * 1024
DETAILS: Mapping[str, tuple[type, ...]] = {
    "log_path": (str,),
    "peak_memory_bytes": (int,),
    "cpu_seconds": (int, float),
    "metrics": (dict,),
}


@dataclass(frozen=True, slots=True)
class Mail:
    """`job` is the row of a job that is new to its owner. `stored_bytes` is the size of a value that was not read.

    `message` is None for a kind that this version does not know; it is closed all the same.
    """

    mail_id: int
    job_id: JobId
    message: Message | None
    job: Mapping[str, Any] | None = None
    stored_bytes: int = 0


class Arrived(list[Mail]):
    """`is_all`: nothing else was there at that moment. `is_cut`: there was more than so many bytes."""

    is_all = True
    is_cut = False


async def read_mail(
    conn: Connection,
    owner_id: str,
    limit: int,
    max_slices: int = MAX_SLICES,
    *,
    inline_bytes: int = INLINE_BYTES,
    max_bytes: int = MAX_BYTES,
    window: int | None = None,
) -> Arrived:
    """Needs a connection that keeps JSON as bytes. Not more slices at once: other jobs must not wait for them.

    `window` is the number of rows among which jobs with little mail are looked for.
    """
    sizes = {"limit": limit, "window": window or limit, "inline_bytes": inline_bytes, "max_bytes": max_bytes}
    values = {"owner_id": owner_id, **sizes}
    rows = await fetch(conn, "read_mail", values)
    is_cut = len(rows) < limit and any(row["arrived"] > len(rows) for row in rows[:1])
    is_all = len(rows) < limit and not is_cut
    slices = [place for place, row in enumerate(rows) if row["kind"] == "added"]
    if len(slices) > max_slices:
        rows, is_all = rows[: slices[max_slices]], False
    if slices:
        await _fill_in(conn, rows)
    arrived = Arrived(Mail(row["mail_id"], row["job_id"], _message(row), _job(row), _stored_bytes(row)) for row in rows)
    arrived.is_all, arrived.is_cut = is_all, is_cut
    return arrived


async def jobs_with_mail(conn: Connection, job_ids: Collection[JobId], apart_from: Iterable[Mail]) -> set[JobId]:
    """Those of the jobs for which there is other mail than this."""
    mail_ids = [mail.mail_id for mail in apart_from]
    rows = await fetch(conn, "jobs_with_mail", {"job_ids": list(job_ids), "mail_ids": mail_ids})
    return {row["job_id"] for row in rows}


async def _fill_in(conn: Connection, rows: Sequence[dict[str, Any]]) -> None:
    added = {row["mail_id"]: row for row in rows if row["kind"] == "added"}
    cursor = await run(conn, "read_slices", {"mail_ids": list(added)})
    for found in await cursor.fetchall():
        added[found["mail_id"]]["output"] = found["output"]


async def close_late_mail(conn: Connection, limit: int = 1000) -> int:
    cursor = await run(conn, "close_late_mail", {"limit": limit})
    row = await cursor.fetchone()
    return row["closed"] if row else 0


async def add_mail(conn: Connection, rows: Sequence[dict[str, Any]]) -> None:
    await run(conn, "add_mail", {"mail": encode_rows(rows)})


def _job(row: dict[str, Any]) -> Mapping[str, Any] | None:
    """As `load_jobs` gives it."""
    return {**row, "created_at": row["job_created_at"]} if row["is_new"] else None


def _message(row: dict[str, Any]) -> Message | None:
    """None for what makes no sense: whoever may insert here must not be able to stop an orchestrator."""
    data = orjson.loads(row["data"]) if row["data"] is not None else {}
    if not isinstance(data, dict):
        data = {}
    match row["kind"]:
        case "submitted" | "adopted":
            return Load()
        case "cancel":
            return Cancel(_text(data.get("actor")), _text(data.get("reason")))
        case "pause":
            return Pause(_text(data.get("actor")), _text(data.get("reason")))
        case "resume":
            return Resume(_text(data.get("actor")))
        case "retry":
            return ManualRetry(row["node_id"], _text(data.get("actor")))
        case "signal":
            return SignalSent(str(data.get("name")), data.get("data"), row["created_at"], _text(data.get("actor")))
        case "added" if row["node_id"] is None:
            return _added(row, data)
        case _ if row["node_id"] is None or row["task_id"] is None:
            return None
        case _:
            return _report(row, data)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _report(row: dict[str, Any], data: dict[str, Any]) -> Message | None:
    node, task, worker, at = row["node_id"], row["task_id"], row["worker_id"], row["created_at"]
    match row["kind"]:
        case "started":
            return TaskStarted(node, task, worker, at)
        case "completed":
            return TaskCompleted(node, task, worker, at, _value(row) or b"{}", row["duration_ms"], _details(data))
        case "failed":
            return TaskFailed(
                node,
                task,
                worker,
                at,
                row["error"] or "failed without a message",
                permanent=bool(data.get("permanent")),
                retry_after_seconds=data.get("retry_after_seconds"),
                duration_ms=row["duration_ms"],
                error_types=_names(data.get("error_types")),
                details=_details(data),
                timed_out=data.get("timed_out") is True,
            )
        case "checkpoint" if (phase := _text(data.get("phase"))) is not None:
            details = data.get("details")
            return TaskCheckpoint(
                node, task, worker, at, phase, _value(row), details if isinstance(details, dict) else {}
            )
        case "added":
            return _added(row, data)
        case "decision":
            actor, comment = _text(data.get("actor")), _text(data.get("comment"))
            return ApprovalDecision(node, task, data.get("approved") is True, at, actor, comment)
        case "lost" | "given_back" as kind:
            return TaskLost(node, task, worker, at, given_back=kind == "given_back")
        case _:
            return None


def _stored_bytes(row: dict[str, Any]) -> int:
    return row["output_bytes"] or 0 if row["output"] is None else 0


def _value(row: dict[str, Any]) -> Value | None:
    if row["output"] is None and row["output_bytes"] is not None:
        return StoredValue(row["output_bytes"], mail_id=row["mail_id"])
    output: bytes | None = row["output"]
    return output


def _added(row: dict[str, Any], data: dict[str, Any]) -> Message | None:
    """An attempt that adds what cannot be read has failed for good; the API reads it before it lets it in."""
    node, task, worker, at = row["node_id"], row["task_id"], row["worker_id"], row["created_at"]
    try:
        given = read_slice(row["output"] or b"null")
    except Invalid as error:
        if node is None:
            return None
        message = f"what it added is refused: {error}"
        return TaskFailed(node, task, worker, at, message, permanent=True, error_types=REFUSED)
    return TasksAdded(
        node, task, worker, at, given.nodes, given.groups, given.dependencies, actor=_text(data.get("actor"))
    )


def _details(data: dict[str, Any]) -> dict[str, Any] | None:
    """What the results' columns can hold; anything else in it would make the owner's batch fail."""
    given = data.get("details")
    if not isinstance(given, dict):
        return None
    return {key: given[key] for key, kinds in DETAILS.items() if type(given.get(key)) in kinds}


def _names(value: object) -> tuple[str, ...]:
    return tuple(one for one in value if isinstance(one, str)) if isinstance(value, list) else ()
