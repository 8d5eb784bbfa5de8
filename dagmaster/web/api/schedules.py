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
from dagmaster.store import schedule_runs
from dagmaster.store import schedules as schedule_store
from dagmaster.web.access import OPERATORS, READERS, Admitted
from dagmaster.web.errors import documented
from dagmaster.web.schedule_sync import sync_catalog
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
async def pause_schedule(schedule_id: str, caller: Admitted, conn: Conn) -> ScheduleReply:
    """Start nothing more. Jobs that run are not touched."""
    actor = caller.name or None
    return ScheduleReply.model_validate(
        await schedule_store.pause_schedule(conn, schedule_id, actor=actor, source_app="api")
    )


@router.post("/{schedule_id}/resume", responses=documented(404), dependencies=[OPERATORS])
async def resume_schedule(schedule_id: str, caller: Admitted, conn: Conn) -> ScheduleReply:
    """Go on with the next time that is still to come; what fell into the pause is left to a backfill."""
    actor = caller.name or None
    return ScheduleReply.model_validate(
        await schedule_store.resume_schedule(conn, schedule_id, actor=actor, source_app="api")
    )


@router.post("/{schedule_id}/trigger", status_code=201, responses=documented(404), dependencies=[OPERATORS])
async def trigger_schedule(schedule_id: str, caller: Admitted, services: Given, conn: Conn) -> ScheduleTriggered:
    """Start a job now, as the schedule would. It may be paused."""
    threshold = services.settings.orphan_threshold_seconds
    submitted, at = await schedule_runs.trigger(
        conn, schedule_id, actor=caller.name or None, threshold_seconds=threshold, source_app="api"
    )
    services.wake()
    return ScheduleTriggered(schedule_id=schedule_id, job_id=str(submitted.job_id), scheduled_for=at)


@router.post("/{schedule_id}/backfill", responses=documented(404), dependencies=[OPERATORS])
async def backfill_schedule(
    schedule_id: str, body: Backfill, caller: Admitted, services: Given, conn: Conn
) -> BackfillReply:
    """Start the jobs of a range of time gone by that are not there yet. Asking twice does no harm."""
    done = await schedule_runs.backfill(
        conn,
        schedule_id,
        body.start,
        body.end,
        most=body.max_jobs,
        dry_run=body.dry_run,
        actor=caller.name or None,
        threshold_seconds=services.settings.orphan_threshold_seconds,
        source_app="api",
    )
    services.wake()
    return BackfillReply.model_validate({"schedule_id": schedule_id, **asdict(done)})
