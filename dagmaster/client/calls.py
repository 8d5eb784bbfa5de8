"""The commands to a server that the clients and HttpService share, as values. No I/O."""

from dataclasses import asdict
from uuid import uuid4

from dagmaster.client.call import PREFIX, Call, body_of, chosen, job_path, quoted, reader, schedule_path
from dagmaster.schemas import signals as schemas
from dagmaster.schemas.jobs import JobCreated, JobRetried, JobSteered, Reason, RetryJob, SubmitJob
from dagmaster.schemas.schedules import Backfill, BackfillReply, ScheduleReply
from dagmaster.schemas.signals import DecisionReply, SendSignal, SignalReply
from dagmaster.schemas.workers import WorkerWanted
from dagmaster.service.contract import (
    BackfillRequest,
    Decide,
    Retry,
    ScheduleCommand,
    Signal,
    SubmitRequest,
    WholeJobChange,
    WorkerCommand,
)


def submit(request: SubmitRequest) -> Call[JobCreated]:
    """Always with an idempotency key, so that a repeated submission creates one job."""
    body = body_of(
        SubmitJob,
        workflow_id=request.workflow,
        input_params=dict(request.inputs),
        priority=request.priority,
        idempotency_key=str(uuid4()) if request.idempotency_key is None else request.idempotency_key,
        correlation_id=request.correlation_id,
        submitted_by=request.submitted_by,
        callback_url=request.callback_url,
        metadata=dict(request.metadata),
    )
    return Call("POST", f"{PREFIX}/jobs", reader(JobCreated), body=body, is_safe=True)


def control(job_id: int | str, command: WholeJobChange) -> Call[JobSteered]:
    fields = chosen(**asdict(command))
    body = body_of(Reason, **fields) if fields else None
    return Call("POST", f"{job_path(job_id)}/{command.verb}", reader(JobSteered), body=body)


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
    return Call("POST", path, reader(DecisionReply), body=body_of(schemas.Decide, comment=decision.comment))


def control_schedule(schedule_id: str, command: ScheduleCommand) -> Call[ScheduleReply]:
    return Call("POST", f"{schedule_path(schedule_id)}/{command}", reader(ScheduleReply), is_safe=True)


def backfill(schedule_id: str, request: BackfillRequest) -> Call[BackfillReply]:
    """Safe to repeat: each time gets one job."""
    body = body_of(Backfill, **asdict(request))
    return Call("POST", f"{schedule_path(schedule_id)}/backfill", reader(BackfillReply), body=body, is_safe=True)


def control_worker(worker_id: str, command: WorkerCommand) -> Call[WorkerWanted]:
    path = f"{PREFIX}/workers/{quoted(worker_id)}/{command}"
    return Call("POST", path, reader(WorkerWanted), is_safe=True)
