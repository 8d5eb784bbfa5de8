"""Schedules: synchronised with the workflows, paused, resumed, triggered and backfilled."""

import logging
from collections.abc import Collection
from dataclasses import asdict

from dagmaster.authoring.catalog import Catalog
from dagmaster.authoring.preparation import prepare
from dagmaster.errors import Conflict, DagmasterError
from dagmaster.ids import ScheduleId
from dagmaster.model.contracts import Contracts
from dagmaster.model.graph import Graph
from dagmaster.service.context import ServiceContext
from dagmaster.service.contract import BackfillRequest, BackfillResult, Row, ScheduleCommand, TriggerResult
from dagmaster.store import schedule_runs, schedules
from dagmaster.store.schedules import Synced

log = logging.getLogger(__name__)


async def control_schedule(context: ServiceContext, schedule_id: ScheduleId, command: ScheduleCommand) -> Row:
    """Returns the schedule after the change. Raises UnknownSchedule."""
    change = schedules.pause_schedule if command == "pause" else schedules.resume_schedule
    return await change(context.conn, schedule_id, actor=context.actor, source_app=context.source_app)


async def trigger_schedule(context: ServiceContext, schedule_id: ScheduleId) -> TriggerResult:
    """Start a job now, as the schedule would, even if it is paused."""
    submitted, scheduled_for = await schedule_runs.trigger(
        context.conn,
        schedule_id,
        actor=context.actor,
        threshold_seconds=context.settings.orphan_threshold_seconds,
        source_app=context.source_app,
    )
    context.wake()
    return TriggerResult(schedule_id, submitted.job_id, scheduled_for)


async def backfill_schedule(
    context: ServiceContext, schedule_id: ScheduleId, request: BackfillRequest
) -> BackfillResult:
    """Start the missing jobs of a past time range, oldest first."""
    backfilled = await schedule_runs.backfill(
        context.conn,
        schedule_id,
        request.start,
        request.end,
        most=request.max_jobs,
        dry_run=request.dry_run,
        actor=context.actor,
        threshold_seconds=context.settings.orphan_threshold_seconds,
        source_app=context.source_app,
    )
    context.wake()
    return BackfillResult(schedule_id, **asdict(backfilled))


async def sync_schedules(
    context: ServiceContext, catalog: Catalog, contracts: Contracts, *, prune: bool, unread: Collection[str] = ()
) -> Synced:
    """Store the schedules of the catalogue's workflows.

    The schedules of `unread` workflows, and of those that cannot be prepared, stay as they are.
    """
    if prune:
        _check_prunable(catalog)
    graphs: list[Graph] = []
    ended: list[str] = []  # Workflows without a schedule, or without one by now.
    unready = list(unread)
    for name, workflow in sorted(catalog.workflows.items()):
        if workflow.schedule is None or not workflow.is_active:
            ended.append(name)
            continue
        try:
            graphs.append(prepare(workflow, context.settings, contracts, catalog.get))
        except DagmasterError as error:
            log.warning("the schedule of workflow %s was not loaded: %s", name, error)
            unready.append(name)
    return await schedules.sync_schedules(
        context.conn,
        graphs,
        ended=ended,
        unready=unready,
        prune=prune,
        actor=context.actor,
        source_app=context.source_app,
    )


def _check_prunable(catalog: Catalog) -> None:
    """Raises Conflict if a file cannot be read: its schedule might be removed by mistake."""
    broken = sorted(
        file for file, problems in catalog.problems.items() if any(problem.is_error for problem in problems)
    )
    if broken:
        raise Conflict(
            f"schedules are not pruned while a workflow cannot be read, because its schedule would be removed too; fix "
            f"or remove {', '.join(broken)}"
        )
