"""The service over HTTP."""

from dataclasses import dataclass

from dagmaster.client import calls
from dagmaster.client.requests import Requests
from dagmaster.ids import JobId, ScheduleId, WorkerId
from dagmaster.service.contract import (
    BackfillRequest,
    BackfillResult,
    ControlResult,
    Decide,
    JobCommand,
    Retry,
    Row,
    ScheduleCommand,
    Signal,
    SubmitRequest,
    SubmitResult,
    TriggerResult,
    WorkerCommand,
)


@dataclass(frozen=True, slots=True)
class HttpService:
    """The server identifies the caller by the API key."""

    requests: Requests

    async def submit(self, request: SubmitRequest) -> SubmitResult:
        created = await self.requests.submit(
            request.workflow,
            request.inputs,
            priority=request.priority,
            idempotency_key=request.idempotency_key,
            correlation_id=request.correlation_id,
            submitted_by=request.submitted_by,
            callback_url=request.callback_url,
            metadata=request.metadata,
        )
        job_id, warnings = JobId(int(created.job_id)), tuple(created.warnings)
        version = created.workflow_version
        return SubmitResult(job_id, created.workflow_id, version, created.status, created.is_new, warnings)

    async def control_job(self, job_id: int, command: JobCommand) -> ControlResult:
        match command:
            case Signal():
                signalled = await self.requests.ask(calls.signal(job_id, command))
                return ControlResult(signalled.status, is_done=False)
            case Decide():
                decided = await self.requests.ask(calls.decide(job_id, command))
                return ControlResult(decided.status, decided.is_done)
            case Retry():
                retried = await self.requests.ask(calls.retry(job_id, command))
                return ControlResult(**retried.model_dump(exclude={"job_id"}))
            case _:
                changed = await self.requests.ask(calls.control(job_id, command))
                return ControlResult(changed.status, changed.is_done, changed.is_paused)

    async def control_schedule(self, schedule_id: ScheduleId, command: ScheduleCommand) -> Row:
        return (await self.requests.ask(calls.control_schedule(schedule_id, command))).model_dump()

    async def trigger_schedule(self, schedule_id: ScheduleId) -> TriggerResult:
        triggered = await self.requests.trigger_schedule(schedule_id)
        return TriggerResult(schedule_id, JobId(int(triggered.job_id)), triggered.scheduled_for)

    async def backfill_schedule(self, schedule_id: ScheduleId, request: BackfillRequest) -> BackfillResult:
        reply = await self.requests.ask(calls.backfill(schedule_id, request))
        return BackfillResult(**reply.model_dump())

    async def control_worker(self, worker_id: WorkerId, command: WorkerCommand) -> str:
        return (await self.requests.ask(calls.control_worker(worker_id, command))).wanted

    async def clear_cache(self, handler: str | None) -> int:
        return (await self.requests.clear_cache(handler)).removed
