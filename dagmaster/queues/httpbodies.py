"""The HTTP bodies between a remote worker and its server. No I/O."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import inf
from typing import Any, TypeVar

import orjson

from dagmaster.ids import JobId
from dagmaster.model.contracts import Contract
from dagmaster.queues.contract import Recalled, SavedCheckpoint, TaskMessage, TaskReport
from dagmaster.schemas.workers import MAX_BATCH

T = TypeVar("T")

# The size of a report without its output, at most.
REPORT_BYTES = 8 * 1024
MAX_SCHEMAS_BYTES = 1024 * 1024
MAX_DOCUMENTATION = 10_000
DETAILS = ("peak_memory_bytes", "cpu_seconds", "metrics")


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of the server; until registration, those that any server accepts."""

    claim_wait_seconds: float = 10.0
    max_body_bytes: int = 1024 * 1024


def parts(slices: Sequence[bytes], limits: Limits) -> Iterator[list[bytes]]:
    """Group slices of added nodes into bodies."""
    return _grouped(((encoded, len(encoded) + 1) for encoded in slices), limits.max_body_bytes - REPORT_BYTES)


def batches(reports: Sequence[TaskReport], limits: Limits) -> Iterator[list[TaskReport]]:
    """Group reports into bodies."""
    sizes = (REPORT_BYTES + len(report.output or b"") + len((report.error or "").encode()) for report in reports)
    return _grouped(zip(reports, sizes, strict=True), limits.max_body_bytes, MAX_BATCH)


def _grouped(items: Iterable[tuple[T, int]], max_bytes: int, max_items: float = inf) -> Iterator[list[T]]:
    """Groups of items with their sizes. An item that is too large forms a group of its own."""
    group: list[T] = []
    room = max_bytes
    for item, size in items:
        if group and (size > room or len(group) == max_items):
            yield group
            group, room = [], max_bytes
        group.append(item)
        room -= size
    if group:
        yield group


def report_body(report: TaskReport) -> dict[str, Any]:
    reported = report.details or {}
    details = {name: reported[name] for name in DETAILS if reported.get(name) is not None}
    if reported.get("log_path"):  # The server itself knows where.
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
    saved = task["checkpoint"]
    checkpoint = checkpoint_of(saved) if saved is not None else None
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


def checkpoint_of(body: Mapping[str, Any]) -> SavedCheckpoint:
    artifacts = orjson.dumps(body["artifacts"]) if body["artifacts"] is not None else None
    return SavedCheckpoint(body["phase"], orjson.dumps(body["data"]), artifacts, int(body["checkpoint_id"]))


def recalled_of(body: Mapping[str, Any]) -> Recalled:
    return Recalled(orjson.dumps(body["output"]), JobId(int(body["job_id"])), datetime.fromisoformat(body["stored_at"]))


def contract_bodies(contracts: Sequence[Contract]) -> list[dict[str, Any]]:
    """Omit the schemas and documentation if they are too long altogether: they are only for display."""
    schemas = sum(len(orjson.dumps(contract.params)) for contract in contracts if contract.params is not None)
    is_short = schemas <= MAX_SCHEMAS_BYTES
    return [
        {
            "name": contract.name,
            "queue": contract.queue,
            "timeout_seconds": contract.timeout_seconds,
            "retry": contract.retry.model_dump(mode="json") if contract.retry is not None else None,
            "params": contract.params if is_short else None,
            "documentation": contract.documentation[:MAX_DOCUMENTATION] if is_short else "",
        }
        for contract in contracts
    ]
