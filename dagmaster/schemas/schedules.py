"""Schedules and backfills."""

from datetime import datetime
from typing import Annotated

from pydantic import Field

from dagmaster.model.schedule import Catchup
from dagmaster.model.states import JobStatus
from dagmaster.schemas.common import Body, Id, Json, Reply, Time


class ScheduleReply(Reply):
    """`rule` is the cron expression or the interval. `next_times` is empty while the schedule is paused."""

    schedule_id: str
    workflow_id: str
    workflow_hash: str
    rule: str
    cron: str | None
    interval_seconds: float | None
    timezone: str
    catchup: Catchup
    input_params: Json
    paused_at: Time | None
    paused_by: str | None
    next_at: Time | None
    next_times: list[Time]
    last_at: Time | None
    last_job_id: Id | None
    last_job_status: JobStatus | None
    is_late: bool
    created_at: Time
    updated_at: Time


class ScheduleList(Reply):
    schedules: list[ScheduleReply]


class ScheduleTriggered(Reply):
    schedule_id: str
    job_id: Id
    scheduled_for: Time


class SyncSchedules(Body):
    """`prune` removes schedules whose workflows this server does not have."""

    prune: bool = False


class SchedulesSynced(Reply):
    """The ids of added, changed and removed schedules."""

    added: list[str]
    changed: list[str]
    removed: list[str]


class Backfill(Body):
    """From `start` (inclusive) to `end` (exclusive). The default time is midnight, the default offset the schedule's.

    Starts at most `max_jobs`, oldest first; repeat the request to continue.
    """

    start: Annotated[datetime, Field(examples=["2026-01-01"])]
    end: Annotated[datetime, Field(examples=["2026-02-01T06:00:00Z"])]
    max_jobs: Annotated[int, Field(ge=1, le=1000)] = 1000
    dry_run: bool = False


class BackfillReply(Reply):
    """Of all `times` in the range, `existing` already had a job; `left` remain for another request."""

    schedule_id: str
    times: int
    existing: int
    submitted: int
    left: int
    first: Time | None
    last: Time | None
    job_ids: list[Id]
