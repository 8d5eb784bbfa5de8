"""Commands to a job: send them to its owner and wait for the effect."""

from collections.abc import Callable
from dataclasses import replace
from typing import assert_never

from dagmaster.ids import JobId, NodeId
from dagmaster.model.shapes import read_box
from dagmaster.model.states import JOB_TERMINAL, JobStatus, NodeStatus
from dagmaster.service.context import ServiceContext
from dagmaster.service.contract import (
    Cancel,
    ControlResult,
    Decide,
    JobChange,
    JobCommand,
    Pause,
    Resume,
    Retry,
    Row,
    Signal,
)
from dagmaster.service.spatial_retry import Selection, select_in_box
from dagmaster.store import job_control as requests
from dagmaster.store import signals


async def control_job(context: ServiceContext, job_id: JobId, command: JobCommand) -> ControlResult:
    """Raises UnknownJob, UnknownNode, JobEnded, and Conflict if the command does not fit the job's state."""
    match command:
        case Signal():
            return await _signal(context, job_id, command)
        case Decide():
            return await _decide(context, job_id, command)
        case Retry(bbox=bbox) if bbox is not None:
            selection = await select_in_box(context.conn, job_id, read_box(bbox))
            result = await _change(context, job_id, command, selection)
            return replace(result, selected_nodes=len(selection.node_ids), unfinished_nodes=selection.unfinished)
        case _:
            return await _change(context, job_id, command)


async def _signal(context: ServiceContext, job_id: JobId, signal: Signal) -> ControlResult:
    """The owner matches the signal with waiting nodes, so there is nothing to wait for here."""
    job = await signals.send_signal(context.conn, job_id, signal.name, data=signal.data, actor=context.actor)
    context.wake()
    return ControlResult(job["status"], is_done=False)


async def _decide(context: ServiceContext, job_id: JobId, decision: Decide) -> ControlResult:
    conn, node_id, approved = context.conn, NodeId(decision.node_id), decision.is_approved
    await signals.request_decision(
        conn, job_id, node_id, approved=approved, actor=context.actor, comment=decision.comment
    )
    context.wake()
    seconds = await context.patience_seconds()
    status = await signals.until_decided(conn, job_id, node_id, approved=approved, seconds=seconds)
    return ControlResult(status, is_done=status is not NodeStatus.RUNNING)


async def _change(
    context: ServiceContext, job_id: JobId, command: JobChange, selection: Selection | None = None
) -> ControlResult:
    is_done = await _request(context, job_id, command, selection)
    context.wake()
    job = await requests.until(context.conn, job_id, is_done, seconds=await context.patience_seconds())
    return ControlResult(job["status"], is_done(job), job["paused_at"] is not None)


async def _request(
    context: ServiceContext, job_id: JobId, command: JobChange, selection: Selection | None
) -> Callable[[Row], bool]:
    """Returns whether a later state of the job shows the effect of the command."""
    conn, actor = context.conn, context.actor
    match command:
        case Cancel(reason):
            await requests.request_cancel(conn, job_id, actor=actor, reason=reason)
            return lambda job: job["status"] in JOB_TERMINAL
        case Pause(reason):
            await requests.request_pause(conn, job_id, actor=actor, reason=reason)
            return lambda job: job["paused_at"] is not None
        case Resume():
            await requests.request_resume(conn, job_id, actor=actor)
            return lambda job: job["paused_at"] is None
        case Retry(named):
            node_id = NodeId(named) if named is not None else None
            threshold = context.settings.orphan_threshold_seconds
            only = selection.node_ids if selection is not None else None
            before = await requests.request_retry(conn, job_id, node_id, only, actor=actor, threshold_seconds=threshold)
            # It may have failed again by now.
            return lambda job: before["status"] != JobStatus.FAILED or job["version"] > before["version"]
        case _:
            assert_never(command)
