"""What can be asked of the server: each question as a value, and how its answer is read. No I/O."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, assert_never
from uuid import uuid4

from dagmaster.client.call import PREFIX, Call, body_of, chosen, get, quoted, read, reader
from dagmaster.schemas import signals as schemas
from dagmaster.schemas.common import Page
from dagmaster.schemas.fleet import FleetStatus, HandlerOfFleet, QueueReply, QueuesReply, WorkerReply
from dagmaster.schemas.jobs import JobCreated, JobReply, JobSteered, JobSummary, Reason, SubmitJob
from dagmaster.schemas.nodes import JobProgress
from dagmaster.schemas.schedules import (
    Backfill,
    BackfillReply,
    ScheduleList,
    ScheduleReply,
    SchedulesSynced,
    ScheduleTriggered,
    SyncSchedules,
)
from dagmaster.schemas.signals import DecisionReply, SendSignal, SignalReply
from dagmaster.schemas.system import Explanation
from dagmaster.schemas.task_cache import CacheCleared
from dagmaster.schemas.timeline import GraphReply, LoggedNode, TimelineReply
from dagmaster.schemas.workers import WorkerWanted
from dagmaster.schemas.workflows import WorkflowList, WorkflowReply
from dagmaster.service.contract import (
    BackfillRequest,
    Cancel,
    Decide,
    JobChange,
    Pause,
    Resume,
    Retry,
    ScheduleCommand,
    Signal,
    WorkerCommand,
)


def submit(workflow_id: str, inputs: Mapping[str, Any] | None, **options: Any) -> Call[JobCreated]:
    """Under a key in any case: a submission that is sent again is still one job."""
    body = body_of(SubmitJob, {"workflow_id": workflow_id, "input_params": dict(inputs or {}), **chosen(**options)})
    if body.idempotency_key is None:
        body.idempotency_key = str(uuid4())
    return Call("POST", f"{PREFIX}/jobs", reader(JobCreated), body=body, is_safe=True)


def job(job_id: int | str, *, children: bool = False) -> Call[JobReply]:
    return get(JobReply, _job(job_id), children=children or None)


def jobs(**filters: Any) -> Call[Page[JobSummary]]:
    return get(Page[JobSummary], f"{PREFIX}/jobs", **filters)


def control(job_id: int | str, command: JobChange) -> Call[JobSteered]:
    match command:
        case Cancel(reason):
            return _control(job_id, "cancel", reason)
        case Pause(reason):
            return _control(job_id, "pause", reason)
        case Resume():
            return _control(job_id, "resume")
        case Retry(node_id):
            return _control(job_id, "retry" if node_id is None else f"nodes/{quoted(node_id)}/retry")
        case _:
            assert_never(command)


def signal(job_id: int | str, sent: Signal) -> Call[SignalReply]:
    body = SendSignal(data=sent.data)
    return Call("POST", f"{_job(job_id)}/signals/{quoted(sent.name)}", reader(SignalReply), body=body)


def decide(job_id: int | str, decision: Decide) -> Call[DecisionReply]:
    verb = "approve" if decision.is_approved else "reject"
    path = f"{_job(job_id)}/nodes/{quoted(decision.node_id)}/{verb}"
    return Call("POST", path, reader(DecisionReply), body=schemas.Decide(comment=decision.comment))


def timeline(job_id: int | str, *, node_id: str | None, event_types: Sequence[str], **page: Any) -> Call[TimelineReply]:
    node = f"/nodes/{quoted(node_id)}" if node_id is not None else ""
    return get(TimelineReply, f"{_job(job_id)}{node}/timeline", event_types=",".join(event_types) or None, **page)


def explain(job_id: int | str, node_id: str | None) -> Call[Explanation]:
    node = f"/nodes/{quoted(node_id)}" if node_id is not None else ""
    return get(Explanation, f"{_job(job_id)}{node}/explain")


def progress(job_id: int | str) -> Call[JobProgress]:
    return get(JobProgress, f"{_job(job_id)}/progress")


def graph(job_id: int | str) -> Call[GraphReply]:
    return get(GraphReply, f"{_job(job_id)}/graph")


def workflows() -> Call[WorkflowList]:
    return get(WorkflowList, f"{PREFIX}/workflows")


def workflow(workflow_id: str) -> Call[WorkflowReply]:
    return get(WorkflowReply, f"{PREFIX}/workflows/{quoted(workflow_id)}")


def schedules() -> Call[list[ScheduleReply]]:
    return Call("GET", f"{PREFIX}/schedules", lambda data: read(ScheduleList, data).schedules, is_safe=True)


def schedule(schedule_id: str) -> Call[ScheduleReply]:
    return get(ScheduleReply, _schedule(schedule_id))


def control_schedule(schedule_id: str, command: ScheduleCommand) -> Call[ScheduleReply]:
    return Call("POST", f"{_schedule(schedule_id)}/{command}", reader(ScheduleReply), is_safe=True)


def trigger_schedule(schedule_id: str) -> Call[ScheduleTriggered]:
    return Call("POST", f"{_schedule(schedule_id)}/trigger", reader(ScheduleTriggered))


def sync_schedules(*, prune: bool) -> Call[SchedulesSynced]:
    body = SyncSchedules(prune=prune)
    return Call("POST", f"{PREFIX}/schedules/sync", reader(SchedulesSynced), body=body, is_safe=True)


def backfill(schedule_id: str, request: BackfillRequest) -> Call[BackfillReply]:
    """A job for each time, however often it is asked for."""
    body = body_of(Backfill, asdict(request))
    return Call("POST", f"{_schedule(schedule_id)}/backfill", reader(BackfillReply), body=body, is_safe=True)


def clear_cache(handler: str | None) -> Call[CacheCleared]:
    params = {"handler": handler} if handler is not None else {}
    return Call("DELETE", f"{PREFIX}/cache", reader(CacheCleared), params, is_safe=True)


def workers(**page: Any) -> Call[Page[WorkerReply]]:
    return get(Page[WorkerReply], f"{PREFIX}/workers", **page)


def control_worker(worker_id: str, command: WorkerCommand) -> Call[WorkerWanted]:
    path = f"{PREFIX}/workers/{quoted(worker_id)}/{command}"
    return Call("POST", path, reader(WorkerWanted), is_safe=True)


def orchestrators() -> Call[FleetStatus]:
    return get(FleetStatus, f"{PREFIX}/orchestrator/status")


def handlers() -> Call[list[HandlerOfFleet]]:
    path = f"{PREFIX}/handlers"
    return Call("GET", path, lambda data: read(Page[HandlerOfFleet], data).items, {"limit": 1000}, is_safe=True)


def queues() -> Call[list[QueueReply]]:
    return Call("GET", f"{PREFIX}/queues/status", lambda data: read(QueuesReply, data).queues, is_safe=True)


def logged(job_id: int | str, **page: Any) -> Call[Page[LoggedNode]]:
    return get(Page[LoggedNode], f"{_job(job_id)}/logs", **page)


def logs(
    job_id: int | str, node_id: str, *, attempt: int | None, tail: int | None, follow: bool
) -> tuple[str, dict[str, Any]]:
    """The path and its parameters: what is answered is read piece by piece."""
    params = chosen(attempt=attempt, tail=tail, follow=follow or None)
    return f"{_job(job_id)}/nodes/{quoted(node_id)}/logs", params


def stream_path(job_id: int | str) -> str:
    return f"{_job(job_id)}/stream"


def _job(job_id: int | str) -> str:
    return f"{PREFIX}/jobs/{quoted(job_id)}"


def _schedule(schedule_id: str) -> str:
    return f"{PREFIX}/schedules/{quoted(schedule_id)}"


def _control(job_id: int | str, verb: str, reason: str | None = None) -> Call[JobSteered]:
    body = Reason(reason=reason) if reason is not None else None
    return Call("POST", f"{_job(job_id)}/{verb}", reader(JobSteered), body=body)
