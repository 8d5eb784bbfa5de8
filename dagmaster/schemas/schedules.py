"""Schedules, and the jobs that they start."""

from datetime import datetime
from typing import Annotated

from pydantic import Field

from dagmaster.model.schedule import Catchup
from dagmaster.model.states import JobStatus
from dagmaster.schemas.common import Body, Id, Json, Reply, Time


class ScheduleReply(Reply):
    """`rule` is the cron expression, or the interval. `next_times` are empty while it is paused."""

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
    """With `prune` schedules are removed whose workflows this server does not have."""

    prune: bool = False


class SchedulesSynced(Reply):
    """The ids of schedules that are new, have changed, or are gone."""

    added: list[str]
    changed: list[str]
    removed: list[str]


class Backfill(Body):
    """From `start` on and before `end`. Without a time it is midnight, without an offset it is the schedule's timezone.

    At most `max_jobs` are started, the oldest first; another call goes on.
    """

    start: Annotated[datetime, Field(examples=["2026-01-01"])]
    end: Annotated[datetime, Field(examples=["2026-02-01T06:00:00Z"])]
    max_jobs: Annotated[int, Field(ge=1, le=1000)] = 1000
    dry_run: bool = False


class BackfillReply(Reply):
    """Of all `times` in the range, `existing` had a job before; `left` are for another call."""

    schedule_id: str
    times: int
    existing: int
    submitted: int
    left: int
    first: Time | None
    last: Time | None
    job_ids: list[Id]
