"""The spans of an orchestrator: one per dispatch and one per ended job."""

from collections.abc import Iterable
from hashlib import sha256
from typing import TYPE_CHECKING

from dagmaster import tracing
from dagmaster.engine.change_set import ChangeSet, Dispatch
from dagmaster.engine.state import JobState
from dagmaster.model.states import JobStatus

if TYPE_CHECKING:
    from opentelemetry.trace import Span


def begin_dispatches(change_sets: Iterable[ChangeSet]) -> "list[Span]":
    """Start a span per task and pass it on, so that the worker continues the trace."""
    if not tracing.is_on():
        return []
    return [_begin(changes.job, dispatch) for changes in change_sets for dispatch in changes.dispatches.values()]


def _begin(job: JobState, dispatch: Dispatch) -> "Span":
    span = tracing.begin(
        "dispatch_node",
        parent_of(job),
        job_id=job.job_id,
        workflow_id=job.graph.workflow.workflow_id,
        node_id=dispatch.node.node_id,
        task_id=dispatch.task_id,
        queue=dispatch.node.task_queue,
        handler=dispatch.node.task.handler,
        attempt=dispatch.attempt,
    )
    dispatch.trace_parent = tracing.trace_parent_of(span)
    return span


def end_dispatches(spans: "Iterable[Span]", error: BaseException | None = None) -> None:
    """End the spans, with the error if the batch was not written."""
    for span in spans:
        if error is not None:
            tracing.fail(span, f"not written: {type(error).__name__}")
        span.end()


def trace_ended(job: JobState) -> None:
    """Record the span of a job, from its start to its end."""
    if not tracing.is_on():
        return
    span = tracing.begin(
        "process_job",
        parent_of(job),
        job.started_at,
        job_id=job.job_id,
        workflow_id=job.graph.workflow.workflow_id,
        status=str(job.status),
        nodes=len(job.nodes),
    )
    if job.status is not JobStatus.COMPLETED:
        tracing.fail(span, job.error or str(job.status))
    span.end()


def parent_of(job: JobState) -> str:
    """The job's trace context. Without one, it is derived from the job id, so that every owner uses the same."""
    if job.trace_parent is not None:
        return job.trace_parent
    digest = sha256(f"dagmaster job {job.job_id}".encode()).hexdigest()
    return f"00-{digest[:32]}-{digest[32:48]}-01"
