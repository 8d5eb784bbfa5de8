"""The service over the database."""

from dataclasses import dataclass

from dagmaster.errors import Invalid
from dagmaster.ids import JobId, ScheduleId, WorkerId
from dagmaster.service import job_control, schedules, submission
from dagmaster.service.context import ServiceContext
from dagmaster.service.contract import (
    BackfillRequest,
    BackfillResult,
    ControlResult,
    JobCommand,
    Row,
    ScheduleCommand,
    SubmitRequest,
    SubmitResult,
    TriggerResult,
    WorkerCommand,
)
from dagmaster.service.definitions import Definitions
from dagmaster.store.job_control import control_worker
from dagmaster.store.task_cache import clear_results


@dataclass(frozen=True, slots=True)
class DatabaseService:
    """`definitions` are needed only to submit."""

    context: ServiceContext
    definitions: Definitions | None = None

    async def submit(self, request: SubmitRequest) -> SubmitResult:
        if self.definitions is None:
            raise Invalid(f"no workflows are loaded here, so {request.workflow!r} is unknown")
        return await submission.submit(self.context, self.definitions, request)

    async def control_job(self, job_id: JobId, command: JobCommand) -> ControlResult:
        return await job_control.control_job(self.context, job_id, command)

    async def control_schedule(self, schedule_id: ScheduleId, command: ScheduleCommand) -> Row:
        return await schedules.control_schedule(self.context, schedule_id, command)

    async def trigger_schedule(self, schedule_id: ScheduleId) -> TriggerResult:
        return await schedules.trigger_schedule(self.context, schedule_id)

    async def backfill_schedule(self, schedule_id: ScheduleId, request: BackfillRequest) -> BackfillResult:
        return await schedules.backfill_schedule(self.context, schedule_id, request)

    async def control_worker(self, worker_id: WorkerId, command: WorkerCommand) -> str:
        context = self.context
        return await control_worker(
            context.conn, worker_id, command, actor=context.actor, source_app=context.source_app
        )

    async def clear_cache(self, handler: str | None) -> int:
        context = self.context
        return await clear_results(context.conn, handler, actor=context.actor, source_app=context.source_app)
