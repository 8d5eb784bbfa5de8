"""Mail in the payload of a notification: `mail_payload` and `new_job_payload` in `sql/mailbox.sql`.

Any database user may notify. So the payload's types are validated here, and the batch compares it with the rows.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from types import UnionType
from typing import Any

import orjson

from dagmaster.engine.messages import Load
from dagmaster.model.states import JobStatus
from dagmaster.store.mail_codec import decode
from dagmaster.store.mailbox import Mail

Types = Mapping[str, type | UnionType]

_MAIL: Types = {
    "mail_id": int,
    "created_at": int,
    "job_id": int,
    "kind": str,
    "node_id": str | None,
    "task_id": str | None,
    "worker_id": str | None,
    "output": str | None,
    "error": str | None,
    "duration_ms": int | None,
    "data": str | None,
}
_NEW_JOB: Types = {
    "mail_id": int,
    "created_at": int,
    "job_id": int,
    "owner_id": str | None,
    "owner_epoch": int,
    "workflow_hash": str,
    "status": str,
    "version": int,
    "priority": int,
    "correlation_id": str | None,
    "trace_parent": str | None,
    "input_params": str,
    "input_bytes": int,
    "has_version": bool,
}
# Columns of a job that has not started.
_UNSET = dict.fromkeys(
    (
        *("started_at", "completed_at", "paused_at", "paused_by", "resumed_at", "signals"),
        *("error_message", "failed_node", "ended_by", "deadline_at"),
    )
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def read_payload(payload: str) -> Mail | None:
    """The mail in the payload; None if there is none or it cannot be read."""
    try:
        values = orjson.loads(payload)
        if not isinstance(values, list):
            return None
        return _new_job(values, payload) if len(values) == len(_NEW_JOB) else _mail(values, payload)
    except (ValueError, OverflowError):
        return None


def _mail(values: list[Any], payload: str) -> Mail:
    row = _row(_MAIL, values)
    row["output"] = row["output"].encode() if row["output"] is not None else None
    row["output_bytes"] = None
    return Mail(row["mail_id"], row["job_id"], decode(row), payload=payload)


def _new_job(values: list[Any], payload: str) -> Mail:
    row = _row(_NEW_JOB, values)
    if row["status"] != JobStatus.PENDING or not isinstance(orjson.loads(row["input_params"]), dict):
        raise ValueError("not a new job")
    return Mail(row["mail_id"], row["job_id"], Load(), {**row, **_UNSET, "idle_seconds": 0.0}, payload=payload)


def _row(types: Types, values: list[Any]) -> dict[str, Any]:
    """Raises ValueError unless the values have these types."""
    row = dict(zip(types, values, strict=True))
    for name, kind in types.items():
        if not isinstance(row[name], kind):
            raise ValueError(f"{name} has another type")
    row["created_at"] = _EPOCH + timedelta(microseconds=row["created_at"])
    return row
