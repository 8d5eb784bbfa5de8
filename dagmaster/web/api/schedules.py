"""Schedules: which there are, when they start a job, and how they are steered."""

from dataclasses import asdict

from fastapi import APIRouter

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
from dagmaster.web.errors import documented
from dagmaster.web.schedule_sync import sync_catalog
from dagmaster.web.service_context import Context
from dagmaster.web.services import Conn, Given

router = APIRouter(prefix="/api/v1/schedules", tags=["schedules"])


@router.get("", dependencies=[READERS])
async def list_schedules(conn: Conn) -> ScheduleList:
    """All of them, with the next times at which they start a job."""
    return ScheduleList(
        schedules=[ScheduleReply.model_validate(row) for row in await schedule_store.list_schedules(conn)]
    )


@router.post("/sync", dependencies=[OPERATORS])
async def sync_schedules(
    caller: Admitted, services: Given, conn: Conn, body: SyncSchedules | None = None
) -> SchedulesSynced:
    """Read the workflows again that have changed, and make the schedules what they say."""
    services.catalog.reload()
    synced = await sync_catalog(conn, services, prune=bool(body and body.prune), actor=caller.name or None)
    return SchedulesSynced(added=list(synced.added), changed=list(synced.changed), removed=list(synced.removed))


@router.get("/{schedule_id}", responses=documented(404), dependencies=[READERS])
async def get_schedule(schedule_id: str, conn: Conn) -> ScheduleReply:
    """One schedule. Its id is that of its workflow."""
    return ScheduleReply.model_validate(await schedule_store.get_schedule(conn, schedule_id))


@router.post("/{schedule_id}/pause", responses=documented(404), dependencies=[OPERATORS])
async def pause_schedule(schedule_id: str, context: Context) -> ScheduleReply:
    """Start nothing more. Jobs that run are not touched."""
    return ScheduleReply.model_validate(await service.control_schedule(context, schedule_id, "pause"))


@router.post("/{schedule_id}/resume", responses=documented(404), dependencies=[OPERATORS])
async def resume_schedule(schedule_id: str, context: Context) -> ScheduleReply:
    """Go on with the next time that is still to come; what fell into the pause is left to a backfill."""
    return ScheduleReply.model_validate(await service.control_schedule(context, schedule_id, "resume"))


@router.post("/{schedule_id}/trigger", status_code=201, responses=documented(404), dependencies=[OPERATORS])
async def trigger_schedule(schedule_id: str, context: Context) -> ScheduleTriggered:
    """Start a job now, as the schedule would. It may be paused."""
    return ScheduleTriggered.model_validate(asdict(await service.trigger_schedule(context, schedule_id)))


@router.post("/{schedule_id}/backfill", responses=documented(404), dependencies=[OPERATORS])
async def backfill_schedule(schedule_id: str, body: Backfill, context: Context) -> BackfillReply:
    """Start the jobs of a range of time gone by that are not there yet. Asking twice does no harm."""
    request = BackfillRequest(body.start, body.end, body.max_jobs, body.dry_run)
    return BackfillReply.model_validate(asdict(await service.backfill_schedule(context, schedule_id, request)))
