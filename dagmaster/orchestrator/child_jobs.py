"""Submit the child jobs of nodes after their attempts are written: retried until it succeeds, and each only once."""

import logging
from collections.abc import Iterable
from datetime import datetime

import orjson

from dagmaster.engine.change_set import ChangeSet, NewChildJob
from dagmaster.engine.messages import TaskFailed
from dagmaster.engine.state import JobState
from dagmaster.errors import IdempotencyConflict, Invalid, UnknownJob
from dagmaster.ids import NodeId, TaskId
from dagmaster.model.inputs import check_inputs
from dagmaster.orchestrator.envelopes import Envelope
from dagmaster.orchestrator.job_loader import Definitions
from dagmaster.store.connect import Connection, is_transient
from dagmaster.store.signals import child_job_inputs
from dagmaster.store.submission import Caller, NewJob, submit

log = logging.getLogger(__name__)

SUBMITTER = "dagmaster"


async def start_children(
    conn: Connection, change_sets: Iterable[ChangeSet], definitions: Definitions, owner_id: str, now: datetime
) -> list[Envelope]:
    """Submit the child jobs; returns messages for the callers whose jobs cannot be submitted at all."""
    failed = []
    for job, call in [(changes.job, call) for changes in change_sets for call in changes.new_child_jobs.values()]:
        try:
            await _submit_child(conn, job, call, definitions, owner_id)
        except (IdempotencyConflict, UnknownJob):
            continue  # Already submitted, or no longer awaited.
        except Exception as error:  # A definition may be broken in any way; other jobs must continue.
            if is_transient(error):
                raise
            log.warning("cannot submit the child job of %s", call.task_id, exc_info=not isinstance(error, Invalid))
            failed.append(Envelope(job.job_id, _failure(call, error, now)))
    return failed


async def _submit_child(
    conn: Connection, parent: JobState, call: NewChildJob, definitions: Definitions, owner_id: str
) -> None:
    if call.workflow_hash is None:
        raise Invalid(f"the definition of workflow {call.workflow_id!r} was not pinned with the job")
    graph = definitions.get(call.workflow_hash, await definitions.fetch(conn, [call.workflow_hash]))
    inputs = orjson.loads(
        call.inputs if call.inputs is not None else await child_job_inputs(conn, parent.job_id, NodeId(call.node_id))
    )
    if not isinstance(inputs, dict):
        raise Invalid("the inputs of a workflow must be an object")
    job = NewJob(
        graph,
        check_inputs(graph.workflow, inputs, may_be_sealed=True),
        priority=parent.priority,
        submitted_by=SUBMITTER,
        correlation_id=parent.correlation_id,
        idempotency_key=call.task_id,
        trace_parent=parent.trace_parent,
        caller=Caller(parent.job_id, call.node_id, TaskId(call.task_id)),
    )
    # The owner of the caller owns the child too: no other instance is asked whether it is alive.
    await submit(conn, job, threshold_seconds=0, owner_id=owner_id, source_app="orchestrator", notifies=False)


def _failure(call: NewChildJob, error: Exception, now: datetime) -> TaskFailed:
    message = f"cannot run workflow {call.workflow_id!r}: {error}"
    types = (type(error).__name__, "Exception")
    return TaskFailed(call.node_id, call.task_id, None, now, message, permanent=True, error_types=types)
