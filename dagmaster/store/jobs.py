"""Jobs: submitted in one transaction, loaded into their owner's memory, shown to people."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from hashlib import sha256
from typing import Any

import orjson
import psycopg

from dagmaster.engine.added_node import read_definition
from dagmaster.engine.state import CHILD_SHARE, JobState, NodeState, is_deciding, new_job, restore
from dagmaster.engine.values import INPUTS, LoadedValues, StoredValue
from dagmaster.errors import ExpressionFailed, IdempotencyConflict, Invalid, UnknownJob
from dagmaster.ids import new_id
from dagmaster.model.graph import Graph
from dagmaster.model.redact import redact
from dagmaster.model.returned import returned_value
from dagmaster.model.states import JobStatus, NodeStatus, read_ended_by
from dagmaster.store.connect import Connection, encode_rows, storable
from dagmaster.store.sealer import has_secrets, open_sealer
from dagmaster.store.statements import fetch, run

MAX_NAME_LENGTH = 128
MAX_ID, ID_DIGITS = 2**63 - 1, 19
# Larger values are not read into an owner's memory.
INLINE_BYTES = 64 * 1024
# Of the outputs in one answer, together.
MAX_SHOWN_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Caller:
    """The attempt of another job's node that a job is submitted for."""

    job_id: int
    node_id: str
    task_id: str


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job to be submitted; its inputs are checked already."""

    graph: Graph
    inputs: Mapping[str, Any]
    priority: int = 0
    submitted_by: str = ""
    correlation_id: str | None = None
    idempotency_key: str | None = None
    callback_url: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    trace_parent: str | None = None
    actor: str | None = None  # who submits it, if that is known better than `submitted_by`
    schedule_id: str | None = None
    scheduled_for: datetime | None = None
    caller: Caller | None = None
    secret_key: bytes | None = field(default=None, repr=False)  # of the settings, for what is to be sealed


@dataclass(frozen=True, slots=True)
class Submitted:
    job_id: int
    is_new: bool
    owner_id: str | None = None


@dataclass(frozen=True, slots=True)
class Loaded:
    """A job in memory, and the fencing epoch under which it was read."""

    state: JobState
    owner_epoch: int


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A job whose rows make no sense."""

    job_id: int
    error: Exception


async def submit(
    conn: Connection,
    job: NewJob,
    *,
    threshold_seconds: float,
    owner_id: str | None = None,
    source_app: str = "cli",
    notifies: bool = True,
) -> Submitted:
    """Store the job with its nodes, owned at once. The same key with the same content gives the first job."""
    [submitted] = await submit_many(
        conn, [job], threshold_seconds=threshold_seconds, owner_id=owner_id, source_app=source_app, notifies=notifies
    )
    return submitted


async def submit_many(
    conn: Connection,
    jobs: Sequence[NewJob],
    *,
    threshold_seconds: float,
    owner_id: str | None = None,
    source_app: str = "cli",
    notifies: bool = True,
) -> list[Submitted]:
    """All of them or none; raises `Invalid` for what cannot be stored. `notifies` wakes the orchestrators."""
    graphs = {job.graph.workflow.content_hash: job.graph for job in jobs}
    jobs = [await _sealed(conn, job) for job in jobs]
    try:
        rows = [_job_row(job) for job in jobs]
        values = {
            "jobs": encode_rows(rows),
            "workflows": encode_rows([workflow_row(graph) for graph in _with_called(graphs).values()]),
            "nodes": encode_rows([row for graph in graphs.values() for row in _node_rows(graph)]),
            "threshold_seconds": threshold_seconds,
            "owner_id": owner_id,
            "source_app": source_app,
            "notifies": notifies,
        }
        stored = await fetch(conn, "submit_jobs", values)
    except TypeError as error:
        raise Invalid(f"the inputs cannot be written as JSON: {error}") from error
    except psycopg.errors.UntranslatableCharacter as error:
        raise Invalid("the inputs contain a NUL character (\\u0000), which PostgreSQL cannot store") from error
    except (psycopg.DataError, psycopg.errors.ProgramLimitExceeded) as error:
        raise Invalid(f"the job cannot be stored: {error.diag.message_primary}") from error
    added = {row["job_id"]: row["owner_id"] for row in stored}
    return [
        Submitted(row["job_id"], True, added[row["job_id"]]) if row["job_id"] in added else await _first(conn, row)
        for row in rows
    ]


async def _sealed(conn: Connection, job: NewJob) -> NewJob:
    workflow = job.graph.workflow
    if not has_secrets(workflow):
        return job
    sealer = await open_sealer(conn, job.secret_key)
    return replace(job, inputs=sealer.seal_inputs(workflow, job.inputs))


def _with_called(graphs: Mapping[str, Graph]) -> dict[str, Graph]:
    """What they will call is pinned with them."""
    called = {one.workflow.content_hash: one for graph in graphs.values() for one in graph.called}
    return {**called, **graphs}


async def _first(conn: Connection, row: Mapping[str, Any]) -> Submitted:
    """The job that was submitted under this key before."""
    key = {"submitted_by": row["submitted_by"], "idempotency_key": row["idempotency_key"]}
    found = await (await run(conn, "find_by_idempotency_key", key)).fetchone()
    if found is None:
        raise UnknownJob(f"the job with idempotency key {row['idempotency_key']!r} was removed; submit again")
    if found["request_hash"] != row["request_hash"]:
        raise IdempotencyConflict(
            f"idempotency key {row['idempotency_key']!r} belongs to job {found['job_id']}, which was submitted with "
            "other content; use a new key"
        )
    return Submitted(found["job_id"], False)


def _job_row(job: NewJob) -> dict[str, Any]:
    for name in ("submitted_by", "correlation_id", "idempotency_key"):
        if len(getattr(job, name) or "") > MAX_NAME_LENGTH:
            raise Invalid(f"{name} may have {MAX_NAME_LENGTH} characters, not {len(getattr(job, name))}")
    workflow = job.graph.workflow
    inputs = orjson.dumps(job.inputs, option=orjson.OPT_NON_STR_KEYS)
    # What a schedule starts is known by its time: it is the same job though the schedule's inputs have changed since.
    asked_for = job.inputs if job.schedule_id is None else job.scheduled_for
    content = orjson.dumps([workflow.workflow_id, asked_for], option=orjson.OPT_SORT_KEYS)
    return {
        "job_id": new_id(),
        "workflow_id": workflow.workflow_id,
        "workflow_version": workflow.version,
        "workflow_hash": workflow.content_hash,
        "priority": job.priority,
        "input_params": orjson.Fragment(inputs),
        "input_bytes": len(inputs),
        "metadata": job.metadata,
        "submitted_by": job.submitted_by,
        "correlation_id": job.correlation_id,
        "idempotency_key": job.idempotency_key,
        "request_hash": sha256(content).hexdigest() if job.idempotency_key else None,
        "callback_url": job.callback_url,
        "asset_id": None,
        "trace_parent": job.trace_parent,
        "schedule_id": job.schedule_id,
        "scheduled_for": job.scheduled_for,
        "parent_job_id": job.caller.job_id if job.caller else None,
        "parent_node_id": job.caller.node_id if job.caller else None,
        "parent_task_id": job.caller.task_id if job.caller else None,
        "shown_params": redact(job.inputs) if len(inputs) <= INLINE_BYTES else None,
        "actor": job.actor,
    }


def workflow_row(graph: Graph) -> dict[str, Any]:
    workflow = graph.workflow
    return {
        "workflow_hash": workflow.content_hash,
        "workflow_id": workflow.workflow_id,
        "version": workflow.version,
        "definition": orjson.Fragment(workflow.json_definition),
    }


def _node_rows(graph: Graph) -> list[dict[str, Any]]:
    """`max_retries` is fixed here, for the life of the job (RT-04)."""
    return [
        {
            "workflow_hash": graph.workflow.content_hash,
            "node_id": node.node_id,
            "max_retries": (node.task.retry if node.task else node.retry).max_attempts,
        }
        for node in graph.nodes.values()
    ]


async def load(conn: Connection, owner_id: str, job_ids: Sequence[int], graphs: Mapping[str, Graph]) -> list[Loaded]:
    """Those of the jobs that are still live and owned; a pending job needs no look at its nodes."""
    rows = await job_rows(conn, owner_id, job_ids)
    loaded, _ = await restore_rows(conn, rows, graphs)
    return loaded


async def job_rows(
    conn: Connection, owner_id: str, job_ids: Sequence[int], inline_bytes: int = INLINE_BYTES
) -> list[dict[str, Any]]:
    values = {"job_ids": list(job_ids), "owner_id": owner_id, "inline_bytes": inline_bytes}
    return await fetch(conn, "load_jobs", values)


async def restore_rows(
    conn: Connection,
    rows: Sequence[Mapping[str, Any]],
    graphs: Mapping[str, Graph],
    inline_bytes: int = INLINE_BYTES,
) -> tuple[list[Loaded], list[Unreadable]]:
    """Large values stay where they are."""
    begun = [row["job_id"] for row in rows if row["status"] != JobStatus.PENDING]
    nodes = await _nodes_of(conn, begun, inline_bytes)
    loaded, unreadable = [], []
    for row in rows:
        try:
            state = _state(row, graphs[row["workflow_hash"]])
            if its_nodes := nodes.get(state.job_id):
                states = [_node(node, state) for node in its_nodes]
                await _fill_in_decisions(conn, state.job_id, states)
                _restore(state, states)
            loaded.append(Loaded(state, row["owner_epoch"]))
        except Exception as error:  # noqa: BLE001 - rows may be wrong in any way, and the other jobs must go on
            unreadable.append(Unreadable(row["job_id"], error))
    return loaded, unreadable


async def _nodes_of(conn: Connection, job_ids: Sequence[int], inline_bytes: int) -> dict[int, list[dict[str, Any]]]:
    by_job: dict[int, list[dict[str, Any]]] = {}
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
    job.started_at = row["started_at"]
    job.trace_parent = row["trace_parent"]
    job.paused_at, job.paused_by, job.resumed_at = row["paused_at"], row["paused_by"], row["resumed_at"]
    job.version = row["version"]
    job.error, job.failed_node, job.deadline_at = row["error_message"], row["failed_node"], row["deadline_at"]
    job.signals = orjson.loads(row["signals"]) if row["signals"] is not None else []
    return job


def _node(row: Mapping[str, Any], job: JobState) -> NodeState:
    node = node_of(row, job.graph, row["definition"])
    node.has_params, node.output, node.version = row["has_params"], row["output"], row["version"]
    node.times_lost = row["times_lost"]
    if node.output is None and row["output_bytes"] is not None:
        node.output = StoredValue(row["output_bytes"])
    return node


async def _fill_in_decisions(conn: Connection, job_id: int, nodes: Sequence[NodeState]) -> None:
    """What the engine itself wrote down it needs at hand, however long it is."""
    large = {node.node_id: node for node in nodes if is_deciding(node) and isinstance(node.output, StoredValue)}
    if large:
        for node_id, output in (await load_outputs(conn, job_id, list(large))).items():
            large[node_id].output = output


async def load_outputs(conn: Connection, job_id: int, node_ids: Sequence[str]) -> dict[str, bytes]:
    """Needs a connection that keeps JSON as bytes."""
    rows = await fetch(conn, "load_outputs", {"job_id": job_id, "node_ids": list(node_ids)})
    return {row["node_id"]: row["output"] for row in rows if row["output"] is not None}


async def load_values(conn: Connection, job_id: int, names: Collection[str]) -> LoadedValues:
    """The outputs of these nodes, and the inputs where INPUTS is among them."""
    node_ids = [name for name in names if name != INPUTS]
    outputs = await load_outputs(conn, job_id, node_ids) if node_ids else {}
    if INPUTS not in names:
        return LoadedValues(outputs)
    [row] = await fetch(conn, "load_inputs", {"job_id": job_id})
    return LoadedValues(outputs, orjson.loads(row["input_params"]))


def node_of(row: Mapping[str, Any], graph: Graph, definition: bytes | None) -> NodeState:
    """Where it stands, without what it holds. Only an added node has a definition of its own."""
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


async def load_definitions(conn: Connection, hashes: Sequence[str]) -> dict[str, bytes]:
    cursor = await run(conn, "load_definitions", {"hashes": list(hashes)})
    return {row["workflow_hash"]: row["definition"] for row in await cursor.fetchall()}


async def get_job(conn: Connection, job_id: int) -> dict[str, Any]:
    row = await (await run(conn, "show_job", {"job_id": job_id})).fetchone()
    if row is None:
        raise UnknownJob(f"there is no job {job_id}; `dagmaster jobs` lists them")
    return row


async def get_job_head(conn: Connection, job_id: int) -> dict[str, Any]:
    """Without its inputs and its result, which may be large."""
    row = await (await run(conn, "show_job_head", {"job_id": job_id})).fetchone()
    if row is None:
        raise UnknownJob(f"there is no job {job_id}; `dagmaster jobs` lists them")
    return row


async def get_whole_job(
    conn: Connection, job_id: int, *, with_children: bool = False, limit: int = 5000, offset: int = 0
) -> dict[str, Any]:
    """The job with a page of its `nodes`, in one round trip: this is what clients poll.

    `input_params` and `result_data` are JSON. Outputs that are large, each or together, are left out.
    """
    values = {
        "job_id": job_id,
        "with_children": with_children,
        "limit": limit,
        "offset": offset,
        "inline_bytes": INLINE_BYTES,
        "max_bytes": MAX_SHOWN_BYTES,
    }
    cursor = await run(conn, "show_whole_job", values)
    row = await cursor.fetchone()
    if row is None:
        raise UnknownJob(f"there is no job {job_id}; `dagmaster jobs` lists them")
    return row


async def returned_by(conn: Connection, job: Mapping[str, Any]) -> Any:
    """What the workflow function of a completed job has returned; None if there is no such value."""
    if job["status"] != JobStatus.COMPLETED:
        return None
    row = await (await run(conn, "returned_by", {"workflow_hash": job["workflow_hash"]})).fetchone()
    returns = row["returns"] if row else None
    if isinstance(returns, bytes):  # Some connections leave JSON as it is.
        returns = orjson.loads(returns)
    if returns is None:
        return None
    return await asyncio.to_thread(_returned, returns, job)


def _returned(returns: Any, job: Mapping[str, Any]) -> Any:
    """What the job was given and gives may be JSON, and large."""
    inputs, result = (
        orjson.loads(value) if isinstance(value, str) else value for value in (job["input_params"], job["result_data"])
    )
    try:
        return returned_value(returns, result or {}, inputs)
    except ExpressionFailed:  # Of a node that was skipped, or that was allowed to fail.
        return None


async def list_jobs(
    conn: Connection,
    *,
    status: str | None = None,
    workflow_id: str | None = None,
    submitted_by: str | None = None,
    correlation_id: str | None = None,
    id_prefix: str | None = None,
    limit: int = 50,
    offset: int = 0,
) -> list[dict[str, Any]]:
    """Raises Invalid for a status that does not exist."""
    if status is not None and status.lower() not in set(JobStatus):
        raise Invalid(f"{status!r} is not a status; there are {', '.join(JobStatus)}")
    values = {
        "status": status.lower() if status else None,
        "workflow_id": workflow_id,
        "submitted_by": submitted_by,
        "correlation_id": correlation_id,
        "job_ids": None if id_prefix is None else await find_job_ids(conn, id_prefix, limit=limit + offset),
        "limit": limit,
        "offset": offset,
    }
    return await fetch(conn, "list_jobs", values)


async def workflow_names(conn: Connection, hashes: Collection[str]) -> dict[str, str]:
    """The names of pinned definitions by their hashes."""
    rows = await fetch(conn, "workflow_names", {"hashes": sorted(set(hashes))})
    return {row["workflow_hash"]: row["name"] for row in rows}


async def find_job_ids(conn: Connection, prefix: str, *, limit: int) -> list[int]:
    """The newest jobs whose ids begin with these digits. By ranges of ids, which the primary key finds."""
    first = int(prefix)
    scales = [10**length for length in range(ID_DIGITS - len(prefix) + 1)]
    lows = [first * scale for scale in scales if first * scale <= MAX_ID]
    highs = [min((first + 1) * scale - 1, MAX_ID) for scale in scales[: len(lows)]]
    return [row["job_id"] for row in await fetch(conn, "find_job_ids", {"lows": lows, "highs": highs, "limit": limit})]


async def list_nodes(
    conn: Connection, job_id: int, *, with_children: bool = False, inline_bytes: int | None = INLINE_BYTES
) -> list[dict[str, Any]]:
    """Outputs over `inline_bytes` are left out."""
    values = {"job_id": job_id, "with_children": with_children, "inline_bytes": inline_bytes}
    return await fetch(conn, "show_nodes", values)


async def count_nodes(conn: Connection, job_id: int) -> list[dict[str, Any]]:
    """How many nodes are in each state; the children of each fan-out apart."""
    return await fetch(conn, "count_nodes", {"job_id": job_id})


async def watch_nodes(conn: Connection, job_id: int) -> list[dict[str, Any]]:
    """The job's own nodes without their outputs, in no order."""
    return await fetch(conn, "watch_nodes", {"job_id": job_id})


async def job_status(conn: Connection, job_ids: Sequence[int]) -> list[dict[str, Any]]:
    return await fetch(conn, "job_status", {"job_ids": list(job_ids)})


async def count_live_jobs(conn: Connection) -> int:
    [row] = await fetch(conn, "count_live_jobs")
    return int(row["jobs"])


async def fail_poisoned(conn: Connection, owner_id: str, job_id: int, error: str) -> bool:
    """End a job that cannot be processed; False when it is no longer this owner's."""
    cursor = await run(conn, "fail_poisoned_job", {"job_id": job_id, "owner_id": owner_id, "error": storable(error)})
    if await cursor.fetchone() is not None:
        return True
    await run(conn, "let_go_ended_job", {"job_id": job_id, "owner_id": owner_id, "error": storable(error)})
    return False


async def note_error(conn: Connection, job_id: int, error: str, *, strike: int) -> None:
    values = {"job_id": job_id, "error": storable(error), "data": orjson.dumps({"strike": strike}).decode()}
    await run(conn, "note_error", values)


async def call_off_orphans(conn: Connection, *, age_seconds: float) -> int:
    """Cancel jobs that nobody waits for any more; how many."""
    return len(await fetch(conn, "call_off_orphans", {"age_seconds": age_seconds}))
