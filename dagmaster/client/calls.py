"""The commands to a server that the clients and HttpService share, as values. No I/O."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, assert_never
from uuid import uuid4

from dagmaster.client.call import PREFIX, Call, body_of, chosen, job_path, quoted, reader, schedule_path
from dagmaster.schemas import signals as schemas
from dagmaster.schemas.jobs import JobCreated, JobRetried, JobSteered, Reason, RetryJob, SubmitJob
from dagmaster.schemas.schedules import (
    Backfill,
    BackfillReply,
    ScheduleReply,
)
from dagmaster.schemas.signals import DecisionReply, SendSignal, SignalReply
from dagmaster.schemas.workers import WorkerWanted
from dagmaster.service.contract import (
    BackfillRequest,
    Cancel,
    Decide,
    Pause,
    Resume,
    Retry,
    ScheduleCommand,
    Signal,
    WorkerCommand,
)


def submit(workflow_id: str, inputs: Mapping[str, Any] | None, **options: Any) -> Call[JobCreated]:
    """Always with an idempotency key, so that a repeated submission creates one job."""
    body = body_of(SubmitJob, {"workflow_id": workflow_id, "input_params": dict(inputs or {}), **chosen(**options)})
    if body.idempotency_key is None:
        body.idempotency_key = str(uuid4())
    return Call("POST", f"{PREFIX}/jobs", reader(JobCreated), body=body, is_safe=True)


def control(job_id: int | str, command: Cancel | Pause | Resume) -> Call[JobSteered]:
    match command:
        case Cancel(reason):
            return _control(job_id, "cancel", reason)
        case Pause(reason):
            return _control(job_id, "pause", reason)
        case Resume():
            return _control(job_id, "resume")
        case _:
            assert_never(command)


def retry(job_id: int | str, command: Retry) -> Call[JobRetried]:
    path = "retry" if command.node_id is None else f"nodes/{quoted(command.node_id)}/retry"
    body = RetryJob(bbox=command.bbox) if command.bbox is not None else None
    return Call("POST", f"{job_path(job_id)}/{path}", reader(JobRetried), body=body)


def signal(job_id: int | str, sent: Signal) -> Call[SignalReply]:
    body = SendSignal(data=sent.data)
    return Call("POST", f"{job_path(job_id)}/signals/{quoted(sent.name)}", reader(SignalReply), body=body)


def decide(job_id: int | str, decision: Decide) -> Call[DecisionReply]:
    verb = "approve" if decision.is_approved else "reject"
    path = f"{job_path(job_id)}/nodes/{quoted(decision.node_id)}/{verb}"
    return Call("POST", path, reader(DecisionReply), body=schemas.Decide(comment=decision.comment))


def control_schedule(schedule_id: str, command: ScheduleCommand) -> Call[ScheduleReply]:
    return Call("POST", f"{schedule_path(schedule_id)}/{command}", reader(ScheduleReply), is_safe=True)


def backfill(schedule_id: str, request: BackfillRequest) -> Call[BackfillReply]:
    """Safe to repeat: each time gets one job."""
    body = body_of(Backfill, asdict(request))
    return Call("POST", f"{schedule_path(schedule_id)}/backfill", reader(BackfillReply), body=body, is_safe=True)


def control_worker(worker_id: str, command: WorkerCommand) -> Call[WorkerWanted]:
    path = f"{PREFIX}/workers/{quoted(worker_id)}/{command}"
    return Call("POST", path, reader(WorkerWanted), is_safe=True)


def _control(job_id: int | str, verb: str, reason: str | None = None) -> Call[JobSteered]:
    body = Reason(reason=reason) if reason is not None else None
    return Call("POST", f"{job_path(job_id)}/{verb}", reader(JobSteered), body=body)
