"""Jobs that schedules start: when due, when triggered, and as a backfill."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

from dagmaster.errors import Conflict, Invalid, NotFound
from dagmaster.ids import JobId
from dagmaster.model.compile import compile_graph
from dagmaster.model.graph import Graph
from dagmaster.model.schedule import next_time, times_between
from dagmaster.model.schedule_runs import Due, find_due, inputs_at, show_time
from dagmaster.model.workflow import Workflow
from dagmaster.store.connect import Connection, encode_json, encode_rows, storable
from dagmaster.store.schedules import get_schedule, rule_of
from dagmaster.store.statements import fetch, fetch_one, run
from dagmaster.store.submission import NewJob, Submitted, submit_many

SUBMITTER = "schedule"
MAX_BACKFILL = 1000
MAX_TIMES = 100_000
EARLIEST = datetime(1970, 1, 2, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Backfilled:
    """Of all `times` in the range, `existing` already had a job. `left` remain for another call."""

    times: int
    existing: int
    submitted: int
    left: int
    first: datetime | None
    last: datetime | None
    job_ids: tuple[JobId, ...] = ()


async def claim_due(conn: Connection, seen: Sequence[str]) -> dict[str, Any] | None:
    """A due schedule that is not in `seen`, locked in the caller's transaction."""
    return await fetch_one(conn, "claim_due_schedule", {"seen": list(seen)})


async def seconds_to_next(conn: Connection) -> float | None:
    """Seconds until the next schedule is due; None if there is none."""
    [row] = await fetch(conn, "seconds_to_next_schedule")
    seconds: float | None = row["seconds"]
    return seconds


async def start_due(conn: Connection, row: Mapping[str, Any], *, threshold_seconds: float) -> Due:
    """Start the due jobs of a claimed schedule and advance it, atomically in the caller's transaction."""
    graph = _graph_of(row["workflow_hash"], row["definition"])
    schedule = graph.workflow.schedule
    assert schedule is not None
    due = find_due(schedule, row["next_at"], row["now"])
    if due.times:
        jobs = {at: _new_job(graph, at) for at in due.times}
        await _submit(conn, jobs, row["now"], threshold_seconds=threshold_seconds, source_app="orchestrator")
    if due.missed:
        await _note_missed(conn, row["schedule_id"], due)
    last = due.times[-1] if due.times else None
    await run(conn, "move_schedule", {"schedule_id": row["schedule_id"], "next_at": due.next_at, "last_at": last})
    return due


async def skip_due(conn: Connection, row: Mapping[str, Any], error: str) -> None:
    """Record that the job cannot be started, and advance to the next time, or to none if it cannot be computed."""
    try:
        next_at = next_time(rule_of(row), row["now"])
    except Conflict:
        next_at = None
    data = {"schedule_id": row["schedule_id"], "count": 1, "first": show_time(row["next_at"])}
    await run(conn, "note_missed", {"data": encode_json(data), "error": storable(error)})
    await run(conn, "move_schedule", {"schedule_id": row["schedule_id"], "next_at": next_at, "last_at": None})


async def trigger(
    conn: Connection, schedule_id: str, *, actor: str | None, threshold_seconds: float, source_app: str = "cli"
) -> tuple[Submitted, datetime]:
    """Start a job now, as the schedule would, even if the schedule is paused."""
    row = await get_schedule(conn, schedule_id)
    graph = await _load_graph(conn, row)
    at: datetime = row["now"].replace(microsecond=0)
    jobs = {at: _new_job(graph, at, actor=actor, is_manual=True)}
    async with conn.transaction():
        [submitted] = await _submit(
            conn, jobs, at, threshold_seconds=threshold_seconds, source_app=source_app, actor=actor, is_asked_for=True
        )
    return submitted, at


async def backfill(
    conn: Connection,
    schedule_id: str,
    start: datetime,
    end: datetime,
    *,
    most: int = MAX_BACKFILL,
    dry_run: bool = False,
    actor: str | None = None,
    threshold_seconds: float,
    source_app: str = "cli",
) -> Backfilled:
    """Start a job for each time in [`start`, `end`) that has none, the oldest first, at most `most`.

    Future times are left to the schedule. A time without an offset is in the schedule's timezone.
    """
    row = await get_schedule(conn, schedule_id)
    graph = await _load_graph(conn, row)
    times = _times_of(graph, start, end, row["now"])
    missing = await _without_job(conn, schedule_id, times)
    selected = missing[:most]
    new: list[JobId] = []
    if selected and not dry_run:
        jobs = {at: _new_job(graph, at, actor=actor) for at in selected}
        async with conn.transaction():
            submitted = await _submit(
                conn,
                jobs,
                row["now"],
                threshold_seconds=threshold_seconds,
                source_app=source_app,
                actor=actor,
                is_backfill=True,
            )
        new = [job.job_id for job in submitted if job.is_new]
    return Backfilled(
        times=len(times),
        existing=len(times) - len(missing),
        submitted=len(new),
        left=len(missing) - (0 if dry_run else len(selected)),
        first=times[0] if times else None,
        last=times[-1] if times else None,
        job_ids=tuple(new),
    )


def _times_of(graph: Graph, start: datetime, end: datetime, now: datetime) -> list[datetime]:
    schedule = graph.workflow.schedule
    assert schedule is not None
    first, last = (at if at.tzinfo else at.replace(tzinfo=ZoneInfo(schedule.timezone)) for at in (start, end))
    if not EARLIEST <= first < last:
        raise Invalid(f"the range from {start} to {end} is invalid: it must start after 1970, and end after its start")
    times = times_between(schedule, first, min(last, now), MAX_TIMES + 1)
    if len(times) > MAX_TIMES:
        raise Invalid(f"the range has more than {MAX_TIMES:,} times of the schedule; choose a shorter one")
    return times


async def _without_job(conn: Connection, schedule_id: str, times: Sequence[datetime]) -> list[datetime]:
    keys = {_key(schedule_id, at): at for at in times}
    rows = await fetch(conn, "find_scheduled", {"submitted_by": SUBMITTER, "keys": list(keys)})
    taken = {row["idempotency_key"] for row in rows}
    return [at for key, at in keys.items() if key not in taken]


async def _submit(
    conn: Connection,
    jobs: Mapping[datetime, NewJob],
    now: datetime,
    *,
    threshold_seconds: float,
    source_app: str,
    **note: Any,
) -> list[Submitted]:
    """Submit the jobs of these times, and record the schedule in the timelines of the new ones. Needs a transaction."""
    submitted = await submit_many(conn, list(jobs.values()), threshold_seconds=threshold_seconds, source_app=source_app)
    events = [
        {
            "job_id": new.job_id,
            "data": {**job.metadata, "late_seconds": round((now - at).total_seconds(), 3), **note},
        }
        for (at, job), new in zip(jobs.items(), submitted, strict=True)
        if new.is_new
    ]
    if events:
        await run(conn, "note_fired", {"events": encode_rows(events), "source_app": source_app})
    return submitted


async def _load_graph(conn: Connection, row: Mapping[str, Any]) -> Graph:
    pinned = await fetch_one(conn, "schedule_definition", {"workflow_hash": row["workflow_hash"]})
    return _graph_of(row["workflow_hash"], pinned["definition"] if pinned else None)


def _graph_of(workflow_hash: str, definition: str | None) -> Graph:
    if definition is None:
        raise NotFound(
            f"the definition {workflow_hash[:12]} of the schedule is not in dag_workflows; `dagmaster schedules sync` "
            "stores it again"
        )
    return compile_graph(Workflow.model_validate_json(definition))


def _new_job(graph: Graph, at: datetime, *, actor: str | None = None, is_manual: bool = False) -> NewJob:
    """The idempotency key ensures one job per time, whoever starts it. A manual run has no key."""
    workflow = graph.workflow
    return NewJob(
        graph,
        inputs_at(workflow, at),
        submitted_by=SUBMITTER,
        idempotency_key=None if is_manual else _key(workflow.workflow_id, at),
        metadata={"schedule_id": workflow.workflow_id, "scheduled_for": show_time(at)},
        actor=actor or SUBMITTER,
        schedule_id=workflow.workflow_id,
        scheduled_for=at,
    )


def _key(schedule_id: str, at: datetime) -> str:
    return f"schedule:{schedule_id}:{show_time(at)}"


async def _note_missed(conn: Connection, schedule_id: str, due: Due) -> None:
    data = {
        "schedule_id": schedule_id,
        "count": len(due.missed),
        "is_more": due.is_more,
        "first": show_time(due.missed[0]),
        "last": show_time(due.missed[-1]),
    }
    await run(conn, "note_missed", {"data": encode_json(data), "error": None})
