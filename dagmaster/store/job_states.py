"""Load jobs into their owner's memory, as the engine needs them, and fail jobs that it cannot process."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson

from dagmaster.engine.added_node import read_definition
from dagmaster.engine.state import CHILD_SHARE, JobState, NodeState, is_deciding, new_job, restore
from dagmaster.engine.values import INPUTS, LoadedValues, StoredValue
from dagmaster.ids import JobId
from dagmaster.model.graph import Graph
from dagmaster.model.states import JobEndedBy, JobStatus, NodeStatus, read_ended_by
from dagmaster.store.connect import Connection, Row, encode_json, storable
from dagmaster.store.statements import fetch, run

# Larger values are not read into an owner's memory.
INLINE_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Loaded:
    """A job in memory, and the fencing epoch at which it was read."""

    state: JobState
    owner_epoch: int


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A job whose rows are invalid."""

    job_id: JobId
    error: Exception


async def job_rows(
    conn: Connection, owner_id: str, job_ids: Sequence[JobId], inline_bytes: int = INLINE_BYTES
) -> list[Row]:
    values = {"job_ids": list(job_ids), "owner_id": owner_id, "inline_bytes": inline_bytes}
    return await fetch(conn, "load_jobs", values)


async def restore_rows(
    conn: Connection, rows: Sequence[Mapping[str, Any]], graphs: Mapping[str, Graph], inline_bytes: int = INLINE_BYTES
) -> tuple[list[Loaded], list[Unreadable]]:
    """Build the states; large values are not loaded."""
    started = [row["job_id"] for row in rows if row["status"] != JobStatus.PENDING]
    nodes = await _nodes_of(conn, started, inline_bytes)
    loaded, unreadable = [], []
    for row in rows:
        try:
            state = _state(row, graphs[row["workflow_hash"]])
            if node_rows := nodes.get(state.job_id):
                states = [_node(node, state) for node in node_rows]
                await _fill_in_decisions(conn, state.job_id, states)
                _restore(state, states)
            loaded.append(Loaded(state, row["owner_epoch"]))
        except Exception as error:  # noqa: BLE001 - rows may be invalid in any way, and other jobs must continue
            unreadable.append(Unreadable(row["job_id"], error))
    return loaded, unreadable


async def _nodes_of(conn: Connection, job_ids: Sequence[JobId], inline_bytes: int) -> dict[JobId, list[Row]]:
    by_job: dict[JobId, list[Row]] = {}
    sizes = {"inline_bytes": inline_bytes, "child_bytes": inline_bytes // CHILD_SHARE}
    if job_ids:
        for row in await fetch(conn, "load_nodes", {"job_ids": list(job_ids), **sizes}):
            by_job.setdefault(row["job_id"], []).append(row)
    return by_job


def _state(row: Mapping[str, Any], graph: Graph) -> JobState:
    job = new_job(
        row["job_id"],
        graph,
        orjson.loads(row["input_params"]) if row["input_params"] is not None else StoredValue(row["input_bytes"]),
        row["created_at"],
        priority=row["priority"],
        correlation_id=row["correlation_id"],
    )
    job.status = JobStatus(row["status"])
    job.started_at, job.completed_at, job.idle_seconds = row["started_at"], row["completed_at"], row["idle_seconds"]
    job.trace_parent = row["trace_parent"]
    job.paused_at, job.paused_by, job.resumed_at = row["paused_at"], row["paused_by"], row["resumed_at"]
    job.version, job.has_version = row["version"], row["has_version"]
    job.error, job.failed_node, job.deadline_at = row["error_message"], row["failed_node"], row["deadline_at"]
    job.ended_by = JobEndedBy(row["ended_by"]) if row["ended_by"] is not None else None
    job.signals = orjson.loads(row["signals"]) if row["signals"] is not None else []
    return job


def _node(row: Mapping[str, Any], job: JobState) -> NodeState:
    node = node_of(row, job.graph, row["definition"])
    node.has_params, node.output, node.version = row["has_params"], row["output"], row["version"]
    node.times_lost = row["times_lost"]
    if node.output is None and row["output_bytes"] is not None:
        node.output = StoredValue(row["output_bytes"])
    return node


async def _fill_in_decisions(conn: Connection, job_id: JobId, nodes: Sequence[NodeState]) -> None:
    """The engine needs its own decisions in memory, whatever their size."""
    large = {node.node_id: node for node in nodes if is_deciding(node) and isinstance(node.output, StoredValue)}
    if large:
        for node_id, output in (await load_outputs(conn, job_id, list(large))).items():
            large[node_id].output = output


async def load_outputs(conn: Connection, job_id: JobId, node_ids: Sequence[str]) -> dict[str, bytes]:
    """Needs a connection that keeps JSON as bytes."""
    rows = await fetch(conn, "load_outputs", {"job_id": job_id, "node_ids": list(node_ids)})
    return {row["node_id"]: row["output"] for row in rows if row["output"] is not None}


async def load_values(conn: Connection, job_id: JobId, names: Collection[str]) -> LoadedValues:
    """The outputs of these nodes, and the inputs if INPUTS is among the names."""
    node_ids = [name for name in names if name != INPUTS]
    outputs = await load_outputs(conn, job_id, node_ids) if node_ids else {}
    if INPUTS not in names:
        return LoadedValues(outputs)
    [row] = await fetch(conn, "load_inputs", {"job_id": job_id})
    return LoadedValues(outputs, orjson.loads(row["input_params"]))


def node_of(row: Mapping[str, Any], graph: Graph, definition: bytes | None) -> NodeState:
    """The state of a node without its values. Only an added node has its own definition."""
    parent = row["parent_node_id"]
    if definition is not None:
        node = read_definition(row["node_id"], definition, parent)
    else:
        spec = graph.nodes[parent or row["node_id"]]
        node = NodeState(row["node_id"], spec, row["max_retries"], parent=parent, index=row["fan_out_index"])
    node.max_retries, node.attempt, node.status = row["max_retries"], row["retry_count"], NodeStatus(row["status"])
    node.dispatched_at, node.started_at = row["dispatched_at"], row["started_at"]
    node.completed_at, node.not_before = row["completed_at"], row["not_before"]
    node.error, node.queue, node.result_of = row["error_message"], row["queue"], row["result_of"]
    node.ended_by = read_ended_by(node.status, row["ended_by"])
    return node


def _restore(job: JobState, nodes: list[NodeState]) -> None:
    restore(job, nodes)
    times: list[datetime] = [
        at for node in nodes for at in (node.dispatched_at, node.started_at, node.completed_at) if at is not None
    ]
    if job.resumed_at is not None:
        times.append(job.resumed_at)
    job.last_progress_at = max(times, default=job.started_at)


async def fail_poisoned(conn: Connection, owner_id: str, job_id: JobId, error: str) -> bool:
    """Fail a job that cannot be processed; False if this owner no longer owns it."""
    values = {"job_id": job_id, "owner_id": owner_id, "error": storable(error)}
    if await fetch(conn, "fail_poisoned_job", values):
        return True
    await run(conn, "release_ended_job", values)
    return False


async def note_error(conn: Connection, job_id: JobId, error: str, *, strike: int) -> None:
    values = {"job_id": job_id, "error": storable(error), "data": encode_json({"strike": strike})}
    await run(conn, "note_error", values)
