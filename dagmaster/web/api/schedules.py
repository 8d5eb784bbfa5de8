"""List, control and backfill schedules."""

from dataclasses import asdict

from fastapi import APIRouter

from dagmaster.http.errors import documented
from dagmaster.ids import ScheduleId
from dagmaster.schemas.schedules import (
    Backfill,
    BackfillReply,
    ScheduleList,
    ScheduleReply,
    SchedulesSynced,
    ScheduleTriggered,
    SyncSchedules,
)
from dagmaster.service import schedules as service
from dagmaster.service.contract import BackfillRequest
from dagmaster.store import schedules as schedule_store
from dagmaster.web.access import OPERATORS, READERS, Admitted
from dagmaster.web.service_context import Context
from dagmaster.web.services import Conn, ServicesDep

router = APIRouter(prefix="/api/v1/schedules", tags=["schedules"])


@router.get("", dependencies=[READERS])
async def list_schedules(conn: Conn) -> ScheduleList:
    """List the schedules and their next run times."""
    return ScheduleList(
        schedules=[ScheduleReply.model_validate(row) for row in await schedule_store.list_schedules(conn)]
    )


@router.post("/sync", dependencies=[OPERATORS])
async def sync_schedules(
    caller: Admitted, services: ServicesDep, conn: Conn, body: SyncSchedules | None = None
) -> SchedulesSynced:
    """Reload changed workflows and update their schedules."""
    await services.reload_workflows()
    synced = await services.sync_schedules(conn, prune=bool(body and body.prune), actor=caller.name or None)
    return SchedulesSynced(added=list(synced.added), changed=list(synced.changed), removed=list(synced.removed))


@router.get("/{schedule_id}", responses=documented(404), dependencies=[READERS])
async def get_schedule(schedule_id: ScheduleId, conn: Conn) -> ScheduleReply:
    """Get a schedule. Its id is the workflow id."""
    return ScheduleReply.model_validate(await schedule_store.get_schedule(conn, schedule_id))


@router.post("/{schedule_id}/pause", responses=documented(404), dependencies=[OPERATORS])
async def pause_schedule(schedule_id: ScheduleId, context: Context) -> ScheduleReply:
    """Pause a schedule. Running jobs are not affected."""
    return ScheduleReply.model_validate(await service.control_schedule(context, schedule_id, "pause"))


@router.post("/{schedule_id}/resume", responses=documented(404), dependencies=[OPERATORS])
async def resume_schedule(schedule_id: ScheduleId, context: Context) -> ScheduleReply:
    """Resume a schedule from its next future time. To run missed times, use a backfill."""
    return ScheduleReply.model_validate(await service.control_schedule(context, schedule_id, "resume"))


@router.post("/{schedule_id}/trigger", status_code=201, responses=documented(404), dependencies=[OPERATORS])
async def trigger_schedule(schedule_id: ScheduleId, context: Context) -> ScheduleTriggered:
    """Start a job now, as the schedule would; works for paused schedules too."""
    return ScheduleTriggered.model_validate(asdict(await service.trigger_schedule(context, schedule_id)))


@router.post("/{schedule_id}/backfill", responses=documented(404), dependencies=[OPERATORS])
async def backfill_schedule(schedule_id: ScheduleId, body: Backfill, context: Context) -> BackfillReply:
    """Start the missing jobs of a period in the past. Repeating the request is safe."""
    request = BackfillRequest(body.start, body.end, body.max_jobs, body.dry_run)
    return BackfillReply.model_validate(asdict(await service.backfill_schedule(context, schedule_id, request)))
