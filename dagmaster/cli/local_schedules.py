"""Schedules on the database itself."""

from collections.abc import Sequence
from dataclasses import asdict

from dagmaster.authoring.contracts import known_contracts, open_rules
from dagmaster.authoring.scheduled import check_prunable, find_scheduled
from dagmaster.cli.backend import Range, Row
from dagmaster.cli.definitions import load_catalog, load_registry
from dagmaster.cli.sessions import ask
from dagmaster.python.workflows import defined
from dagmaster.settings import Settings
from dagmaster.store.connect import Connection
from dagmaster.store.schedule_runs import backfill, trigger
from dagmaster.store.schedules import pause_schedule, resume_schedule, sync_schedules

STEER = {"pause": pause_schedule, "resume": resume_schedule}


def steer(settings: Settings, schedule_id: str, command: str, actor: str | None) -> Row:
    return ask(settings, lambda conn: STEER[command](conn, schedule_id, actor=actor))


def start_now(settings: Settings, schedule_id: str, actor: str | None) -> Row:
    async def start(conn: Connection) -> Row:
        threshold = settings.orphan_threshold_seconds
        submitted, at = await trigger(conn, schedule_id, actor=actor, threshold_seconds=threshold)
        return {"schedule_id": schedule_id, "job_id": submitted.job_id, "scheduled_for": at}

    return ask(settings, start)


def sync(settings: Settings, handlers: Sequence[str], *, prune: bool, actor: str | None) -> Row:
    registry = load_registry(settings, handlers)

    async def store(conn: Connection) -> Row:
        contracts = await known_contracts(conn, registry)
        rules = open_rules(contracts, settings)
        catalog = load_catalog(settings, rules)
        if prune:
            check_prunable(catalog)
        found = find_scheduled(catalog, settings, contracts)
        unready = [*found.unready, *(name for name in defined if name not in catalog.workflows)]
        synced = await sync_schedules(conn, found.graphs, ended=found.ended, unready=unready, prune=prune, actor=actor)
        return asdict(synced)

    return ask(settings, store)


def fill(settings: Settings, schedule_id: str, wanted: Range, actor: str | None) -> Row:
    async def submit(conn: Connection) -> Row:
        done = await backfill(
            conn,
            schedule_id,
            wanted.start,
            wanted.end,
            most=wanted.most,
            dry_run=wanted.dry_run,
            actor=actor,
            threshold_seconds=settings.orphan_threshold_seconds,
        )
        return {"schedule_id": schedule_id, **asdict(done), "job_ids": list(map(str, done.job_ids))}

    return ask(settings, submit)
