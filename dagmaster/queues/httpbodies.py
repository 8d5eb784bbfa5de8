"""The HTTP bodies between a remote worker and its server. No I/O."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson

from dagmaster.ids import JobId
from dagmaster.model.contracts import Contract
from dagmaster.queues.contract import Recalled, SavedCheckpoint, TaskMessage, TaskReport
from dagmaster.schemas.workers import MAX_BATCH

# Of a report without its output.
REPORT_BYTES = 8 * 1024
MAX_SCHEMAS_BYTES = 1024 * 1024
MAX_DOCUMENTATION = 10_000
DETAILS = ("peak_memory_bytes", "cpu_seconds", "metrics")


@dataclass(frozen=True, slots=True)
class Limits:
    """What the server has told; until then what any server takes."""

    claim_wait_seconds: float = 10.0
    max_body_bytes: int = 1024 * 1024

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> "Limits":
        return cls(said["claim_wait_seconds"], said["max_body_bytes"])


def parts(slices: Sequence[bytes], limits: Limits) -> Iterator[list[bytes]]:
    """As many slices of added nodes as fit in a body."""
    part: list[bytes] = []
    room = limits.max_body_bytes - REPORT_BYTES
    for one in slices:
        if part and len(one) + 1 > room:
            yield part
            part, room = [], limits.max_body_bytes - REPORT_BYTES
        part.append(one)
        room -= len(one) + 1
    if part:
        yield part


def batches(reports: Sequence[TaskReport], limits: Limits) -> Iterator[list[TaskReport]]:
    """As many at once as fit in a body."""
    batch: list[TaskReport] = []
    room = limits.max_body_bytes
    for report in reports:
        size = REPORT_BYTES + len(report.output or b"") + len((report.error or "").encode())
        if batch and (size > room or len(batch) == MAX_BATCH):
            yield batch
            batch, room = [], limits.max_body_bytes
        batch.append(report)
        room -= size
    if batch:
        yield batch


def report_body(report: TaskReport) -> dict[str, Any]:
    given = report.details or {}
    details = {name: given[name] for name in DETAILS if given.get(name) is not None}
    if given.get("log_path"):  # Where it is, the server knows better.
        details["has_log"] = True
    timed_out = {"timed_out": True} if report.timed_out else {}
    return timed_out | {
        "task_id": report.task_id,
        "kind": report.kind,
        "output": orjson.Fragment(report.output) if report.output is not None else None,
        "error": report.error,
        "permanent": report.permanent,
        "retry_after_seconds": report.retry_after_seconds,
        "duration_ms": report.duration_ms,
        "error_types": report.error_types,
        "details": details or None,
    }


def message_of(task: Mapping[str, Any]) -> TaskMessage:
    found = task["checkpoint"]
    checkpoint = checkpoint_of(found) if found is not None else None
    return TaskMessage(
        task_id=task["task_id"],
        job_id=JobId(int(task["job_id"])),
        node_id=task["node_id"],
        handler=task["handler"],
        queue=task["queue"],
        params=orjson.dumps(task["params"]),
        timeout_seconds=task["timeout_seconds"],
        retry_count=task["retry_count"],
        dispatched_at=datetime.fromisoformat(task["dispatched_at"]),
        correlation_id=task["correlation_id"],
        trace_parent=task["trace_parent"],
        checkpoint_id=checkpoint.checkpoint_id if checkpoint else None,
        checkpoint_phase=checkpoint.phase if checkpoint else None,
        checkpoint_data=checkpoint.data if checkpoint else None,
        checkpoint_artifacts=checkpoint.artifacts if checkpoint else None,
    )


def checkpoint_of(said: Mapping[str, Any]) -> SavedCheckpoint:
    artifacts = orjson.dumps(said["artifacts"]) if said["artifacts"] is not None else None
    return SavedCheckpoint(said["phase"], orjson.dumps(said["data"]), artifacts, int(said["checkpoint_id"]))


def recalled_of(said: Mapping[str, Any]) -> Recalled:
    return Recalled(orjson.dumps(said["output"]), JobId(int(said["job_id"])), datetime.fromisoformat(said["stored_at"]))


def contract_bodies(contracts: Sequence[Contract]) -> list[dict[str, Any]]:
    """Without the schemas where they are too long altogether: they are for people, the rest decides."""
    schemas = sum(len(orjson.dumps(one.params)) for one in contracts if one.params is not None)
    is_short = schemas <= MAX_SCHEMAS_BYTES
    return [
        {
            "name": one.name,
            "queue": one.queue,
            "timeout_seconds": one.timeout_seconds,
            "retry": one.retry.model_dump(mode="json") if one.retry is not None else None,
            "params": one.params if is_short else None,
            "documentation": one.documentation[:MAX_DOCUMENTATION] if is_short else "",
        }
        for one in contracts
    ]
