"""Commands to a job: send them to its owner and wait for the effect."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, assert_never

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
    Signal,
)
from dagmaster.service.spatial_retry import Selection, select_in_box
from dagmaster.store import job_control as requests
from dagmaster.store import signals

Row = Mapping[str, Any]


async def control_job(context: ServiceContext, job_id: JobId, command: JobCommand) -> ControlResult:
    """Raises UnknownJob, UnknownNode, JobEnded, and Conflict if the command does not fit the job's state."""
    match command:
        case Signal():
            return await _signal(context, job_id, command)
        case Decide():
            return await _decide(context, job_id, command)
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


async def _change(context: ServiceContext, job_id: JobId, command: JobChange) -> ControlResult:
    selection = await _selection(context, job_id, command)
    before = await _request(context, job_id, command, selection)
    context.wake()
    seconds = await context.patience_seconds()
    now = await requests.until(context.conn, job_id, lambda job: _is_done(command, before, job), seconds=seconds)
    result = ControlResult(now["status"], _is_done(command, before, now), now["paused_at"] is not None)
    if selection is None:
        return result
    return replace(result, selected_nodes=len(selection.node_ids), unfinished_nodes=selection.unfinished)


async def _selection(context: ServiceContext, job_id: JobId, command: JobChange) -> Selection | None:
    if not isinstance(command, Retry) or command.bbox is None:
        return None
    return await select_in_box(context.conn, job_id, read_box(command.bbox))


async def _request(context: ServiceContext, job_id: JobId, command: JobChange, selection: Selection | None) -> Row:
    """Returns the job before the change."""
    conn, actor = context.conn, context.actor
    match command:
        case Cancel(reason):
            return await requests.request_cancel(conn, job_id, actor=actor, reason=reason)
        case Pause(reason):
            return await requests.request_pause(conn, job_id, actor=actor, reason=reason)
        case Resume():
            return await requests.request_resume(conn, job_id, actor=actor)
        case Retry(named):
            node_id = NodeId(named) if named is not None else None
            threshold = context.settings.orphan_threshold_seconds
            only = selection.node_ids if selection is not None else None
            return await requests.request_retry(conn, job_id, node_id, only, actor=actor, threshold_seconds=threshold)
        case _:
            assert_never(command)


def _is_done(command: JobChange, before: Row, now: Row) -> bool:
    match command:
        case Cancel():
            return now["status"] in JOB_TERMINAL
        case Pause():
            return now["paused_at"] is not None
        case Resume():
            return now["paused_at"] is None
        case Retry():  # It may have failed again by now.
            return bool(before["status"] != JobStatus.FAILED or now["version"] > before["version"])
        case _:
            assert_never(command)
