"""The mapping between messages of the engine and rows of the mailbox."""

from collections.abc import Mapping
from typing import Any, Final, Literal, NotRequired, TypedDict, assert_never

import orjson

from dagmaster.engine.messages import (
    NO_MESSAGE,
    ApprovalDecision,
    Cancel,
    Load,
    ManualRetry,
    Message,
    Pause,
    Report,
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

Row = Mapping[str, Any]
Mailed = Report | TaskCheckpoint | ApprovalDecision | SignalSent | Cancel | Pause | Resume | ManualRetry

# The types of the results' columns; any other type would make the owner's batch fail.
DETAILS: Mapping[str, tuple[type, ...]] = {
    "log_path": (str,),
    "peak_memory_bytes": (int,),
    "cpu_seconds": (int, float),
    "metrics": (dict,),
}


MailKind = Literal[
    "submitted",
    "adopted",
    "started",
    "completed",
    "failed",
    "lost",
    "given_back",
    "checkpoint",
    "added",
    "decision",
    "signal",
    "cancel",
    "pause",
    "resume",
    "retry",
]


# A kind with large content, which is read separately.
SLICE: Final[MailKind] = "added"


class MailRow(TypedDict):
    """A row to store; `output` and `data` are JSON. Its id and time are assigned on insert."""

    job_id: JobId
    kind: MailKind
    node_id: NotRequired[str | None]
    task_id: NotRequired[str | None]
    worker_id: NotRequired[str | None]
    output: NotRequired[orjson.Fragment | None]
    error: NotRequired[str | None]
    duration_ms: NotRequired[int | None]
    data: NotRequired[Mapping[str, Any] | None]


_NULLS: Mapping[str, Any] = dict.fromkeys(MailRow.__annotations__)


def encode(job_id: JobId, message: Mailed) -> MailRow:
    match message:
        case TaskCompleted() | TaskFailed() | TaskLost() | TaskCheckpoint():
            return _row_of_task(job_id, message)
        case ApprovalDecision(node_id, task_id, approved, _, actor, comment):
            data = {"approved": approved, "actor": actor, "comment": comment}
            return {"job_id": job_id, "kind": "decision", "node_id": node_id, "task_id": task_id, "data": data}
        case SignalSent(name, content, _, actor):
            return {"job_id": job_id, "kind": "signal", "data": {"name": name, "data": content, "actor": actor}}
        case Cancel(actor, reason):
            return {"job_id": job_id, "kind": "cancel", "data": {"actor": actor, "reason": reason}}
        case Pause(actor, reason):
            return {"job_id": job_id, "kind": "pause", "data": {"actor": actor, "reason": reason}}
        case Resume(actor):
            return {"job_id": job_id, "kind": "resume", "data": {"actor": actor}}
        case ManualRetry(node_id, actor, only):
            selection = {} if only is None else {"only": sorted(only)}
            return {"job_id": job_id, "kind": "retry", "node_id": node_id, "data": {"actor": actor, **selection}}
        case _:
            assert_never(message)


def encode_slice(job_id: JobId, content: bytes, actor: str | None) -> MailRow:
    """Nodes of an external caller; the content is parsed when it arrives."""
    return {"job_id": job_id, "kind": "added", "output": orjson.Fragment(content), "data": {"actor": actor}}


def _row_of_task(job_id: JobId, message: Report | TaskCheckpoint) -> MailRow:
    row: MailRow = {
        "job_id": job_id,
        "kind": "lost",
        "node_id": message.node_id,
        "task_id": message.task_id,
        "worker_id": message.worker_id,
    }
    match message:
        case TaskCompleted():
            row["kind"], row["duration_ms"] = "completed", message.duration_ms
            row["output"] = _json(message.output)
            row["data"] = {"details": message.details} if message.details else None
        case TaskFailed():
            row["kind"], row["duration_ms"] = "failed", message.duration_ms
            row["error"] = message.error
            row["data"] = _data_of_failure(message)
        case TaskLost():
            row["kind"] = "given_back" if message.given_back else "lost"
        case TaskCheckpoint():
            row["kind"] = "checkpoint"
            row["output"] = _json(message.data)
            row["data"] = {"phase": message.phase, "details": message.details}
        case _:
            assert_never(message)
    return row


def _data_of_failure(message: TaskFailed) -> dict[str, Any]:
    data = {
        "permanent": message.permanent or None,
        "retry_after_seconds": message.retry_after_seconds,
        "error_types": message.error_types or None,
        "details": message.details or None,
        "timed_out": message.timed_out or None,
    }
    return {name: value for name, value in data.items() if value is not None}


def _json(value: Value | None) -> orjson.Fragment | None:
    assert not isinstance(value, StoredValue), "a stored value is not mailed again"
    return orjson.Fragment(value) if value is not None else None


def mail_values(row: MailRow) -> dict[str, Any]:
    """The parameters of a statement that stores one row."""
    values = {**_NULLS, **row}
    for name in ("output", "data"):
        if values[name] is not None:
            values[name] = orjson.dumps(values[name]).decode()
    return values


def decode(row: Row) -> Message | None:
    """None for invalid mail: a program that may insert here must not be able to stop an orchestrator."""
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
            only = data.get("only")
            selected = frozenset(map(str, only)) if isinstance(only, list) else None
            return ManualRetry(row["node_id"], _text(data.get("actor")), selected)
        case "signal":
            return SignalSent(str(data.get("name")), data.get("data"), row["created_at"], _text(data.get("actor")))
        case "added" if row["node_id"] is None:
            return _added(row, data)
        case _ if row["node_id"] is None or row["task_id"] is None:
            return None
        case _:
            return _message_of_task(row, data)


def _message_of_task(row: Row, data: dict[str, Any]) -> Message | None:
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
                row["error"] or NO_MESSAGE,
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


def _added(row: Row, data: dict[str, Any]) -> Message | None:
    """An unreadable addition fails its attempt permanently; the API validates additions of external callers."""
    node, task, worker, at = row["node_id"], row["task_id"], row["worker_id"], row["created_at"]
    try:
        added = read_slice(row["output"] or b"null")
    except Invalid as error:
        if node is None:
            return None
        message = f"the nodes that it added were refused: {error}"
        return TaskFailed(node, task, worker, at, message, permanent=True, error_types=REFUSED)
    return TasksAdded(
        node, task, worker, at, added.nodes, added.groups, added.dependencies, actor=_text(data.get("actor"))
    )


def _value(row: Row) -> Value | None:
    if row["output"] is None and row["output_bytes"] is not None:
        return StoredValue(row["output_bytes"], mail_id=row["mail_id"])
    output: bytes | None = row["output"]
    return output


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _details(data: dict[str, Any]) -> dict[str, Any] | None:
    details = data.get("details")
    if not isinstance(details, dict):
        return None
    return {key: details[key] for key, kinds in DETAILS.items() if type(details.get(key)) in kinds}


def _names(value: object) -> tuple[str, ...]:
    return tuple(name for name in value if isinstance(name, str)) if isinstance(value, list) else ()
