"""Store new jobs with their nodes in one statement, with an owner from the start."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from hashlib import sha256
from typing import Any

import orjson
import psycopg

from dagmaster.errors import IdempotencyConflict, Invalid, UnknownJob
from dagmaster.ids import JobId, TaskId
from dagmaster.model.graph import Graph
from dagmaster.model.redact import redact
from dagmaster.model.table_references import tables_in
from dagmaster.snowflakes import new_id
from dagmaster.store.connect import Connection, encode_rows
from dagmaster.store.job_states import INLINE_BYTES
from dagmaster.store.sealer import has_secrets, open_sealer
from dagmaster.store.statements import fetch, fetch_one, run

Row = dict[str, Any]

MAX_NAME_LENGTH = 128
MAX_PINNED = 1000

# Definitions that some database is known to hold, newest last. Only a hint: the statement checks it.
_pinned: dict[str, None] = {}


@dataclass(frozen=True, slots=True)
class Caller:
    """The attempt of another job's node for which a child job is submitted."""

    job_id: JobId
    node_id: str
    task_id: TaskId


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job to submit; its inputs are already checked."""

    graph: Graph
    inputs: Mapping[str, Any]
    priority: int = 0
    submitted_by: str = ""
    correlation_id: str | None = None
    idempotency_key: str | None = None
    callback_url: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    trace_parent: str | None = None
    actor: str | None = None  # the submitter, if known more precisely than `submitted_by`
    schedule_id: str | None = None
    scheduled_for: datetime | None = None
    caller: Caller | None = None
    asset_id: str | None = None  # with its version, which the job processes or exports
    version_ordinal: int | None = None
    secret_key: bytes | None = field(default=None, repr=False)  # from the settings, for sealing secret inputs


@dataclass(frozen=True, slots=True)
class Submitted:
    job_id: JobId
    is_new: bool
    owner_id: str | None = None


async def submit(
    conn: Connection,
    job: NewJob,
    *,
    threshold_seconds: float,
    owner_id: str | None = None,
    source_app: str = "cli",
    notifies: bool = True,
) -> Submitted:
    """Store the job with its nodes and owner. The same key with the same content returns the first job."""
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
    """Store all jobs or none; raises `Invalid` for values that cannot be stored. `notifies` wakes the orchestrators."""
    graphs = {job.graph.workflow.content_hash: job.graph for job in jobs}
    jobs = [await _sealed(conn, job) for job in jobs]
    try:
        inputs = [orjson.dumps(job.inputs, option=orjson.OPT_NON_STR_KEYS) for job in jobs]
        rows = [_job_row(job, written) for job, written in zip(jobs, inputs, strict=True)]
        values = {
            "jobs": encode_rows(rows),
            "nodes": encode_rows([row for graph in graphs.values() for row in _node_rows(graph)]),
            "threshold_seconds": threshold_seconds,
            "owner_id": owner_id,
            "source_app": source_app,
            "notifies": notifies,
            "is_single": len(jobs) == 1,
        }
        uses = {row["job_id"]: tables_in(written) for row, written in zip(rows, inputs, strict=True)}
        if any(uses.values()):
            async with conn.transaction():
                stored = await _store(conn, values, graphs)
                await _note_uses(conn, [row["job_id"] for row in stored], uses)
        else:
            stored = await _store(conn, values, graphs)
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


async def _store(conn: Connection, values: Mapping[str, Any], graphs: Mapping[str, Graph]) -> list[Row]:
    """Store the jobs. Definitions may be long, so they are sent only if the database may lack them."""
    if graphs.keys() <= _pinned.keys():
        stored = await fetch(conn, "submit_pinned_jobs", values)
        if stored:
            return stored
    workflows = encode_rows([workflow_row(graph) for graph in _with_called(graphs).values()])
    stored = await fetch(conn, "submit_jobs", {**values, "workflows": workflows})
    for workflow_hash in graphs:
        _pinned.pop(workflow_hash, None)
        _pinned[workflow_hash] = None
    while len(_pinned) > MAX_PINNED:
        del _pinned[next(iter(_pinned))]
    return stored


async def _note_uses(conn: Connection, job_ids: Sequence[int], uses: Mapping[int, Collection[int]]) -> None:
    """Keep the tables of the jobs' inputs until the jobs end."""
    named = [{"job_id": job_id, "object_id": object_id} for job_id in job_ids for object_id in uses[job_id]]
    await run(conn, "use_tables_of_inputs", {"uses": encode_rows(named) or "[]"})


async def _sealed(conn: Connection, job: NewJob) -> NewJob:
    workflow = job.graph.workflow
    if not has_secrets(workflow):
        return job
    sealer = await open_sealer(conn, job.secret_key)
    return replace(job, inputs=sealer.seal_inputs(workflow, job.inputs))


def _with_called(graphs: Mapping[str, Graph]) -> dict[str, Graph]:
    """The graphs with their child workflows, which are pinned with them."""
    called = {child.workflow.content_hash: child for graph in graphs.values() for child in graph.called}
    return {**called, **graphs}


async def _first(conn: Connection, row: Mapping[str, Any]) -> Submitted:
    """The job that was submitted with this key before."""
    key = {"submitted_by": row["submitted_by"], "idempotency_key": row["idempotency_key"]}
    first = await fetch_one(conn, "find_by_idempotency_key", key)
    if first is None:
        raise UnknownJob(f"the job with idempotency key {row['idempotency_key']!r} was removed; submit again")
    if first["request_hash"] != row["request_hash"]:
        raise IdempotencyConflict(
            f"idempotency key {row['idempotency_key']!r} belongs to job {first['job_id']}, which was submitted with "
            "other content; use a new key"
        )
    return Submitted(first["job_id"], False)


def _job_row(job: NewJob, inputs: bytes) -> dict[str, Any]:
    for name in ("submitted_by", "correlation_id", "idempotency_key"):
        if len(getattr(job, name) or "") > MAX_NAME_LENGTH:
            raise Invalid(f"{name} may have at most {MAX_NAME_LENGTH} characters, not {len(getattr(job, name))}")
    workflow = job.graph.workflow
    # A scheduled job is identified by its time, even if the schedule's inputs have changed since.
    identity = job.inputs if job.schedule_id is None else job.scheduled_for
    content = orjson.dumps([workflow.workflow_id, identity], option=orjson.OPT_SORT_KEYS)
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
        "asset_id": job.asset_id,
        "version_ordinal": job.version_ordinal,
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
    """`max_retries` is fixed here for the lifetime of the job."""
    return [
        {
            "workflow_hash": graph.workflow.content_hash,
            "node_id": node.node_id,
            "max_retries": (node.task.retry if node.task else node.retry).max_attempts,
        }
        for node in graph.nodes.values()
    ]
