"""Schedules: synchronised with the workflows, listed, paused and resumed."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, Final

from pydantic import ValidationError

from dagmaster.errors import Conflict, UnknownSchedule
from dagmaster.model.graph import Graph
from dagmaster.model.schedule import Schedule, next_time, times_after
from dagmaster.store.audit import note_command
from dagmaster.store.connect import Connection, Row, encode_rows, required
from dagmaster.store.statements import fetch, fetch_one, run
from dagmaster.store.submission import workflow_row

MISSED_DAYS: Final = 7
LATE_SECONDS: Final = 60.0
SHOWN_TIMES: Final = 5


@dataclass(frozen=True, slots=True)
class Synced:
    """The ids of added, changed and removed schedules."""

    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        return not (self.added or self.changed or self.removed)


async def list_schedules(conn: Connection) -> list[Row]:
    """By id; `next_times` are the next start times."""
    return [_viewed(row) for row in await fetch(conn, "list_schedules", {"schedule_id": None})]


async def get_schedule(conn: Connection, schedule_id: str) -> Row:
    unknown = UnknownSchedule(
        f"there is no schedule {schedule_id!r}; `dagmaster schedules` lists them, `dagmaster schedules sync` reads "
        "them from the workflows"
    )
    return _viewed(required(await fetch_one(conn, "list_schedules", {"schedule_id": schedule_id}), unknown))


def _viewed(row: Row) -> Row:
    now, is_paused = row["now"], row["paused_at"] is not None
    next_at = row["next_at"] or now
    is_late = not is_paused and next_at < now - timedelta(seconds=LATE_SECONDS)
    try:
        schedule = rule_of(row)
    except Conflict:  # The other schedules must still be listed.
        return {**row, "rule": row["cron"] or "unknown", "next_times": [], "is_late": is_late}
    upcoming = islice(times_after(schedule, max(now, next_at - timedelta(microseconds=1))), SHOWN_TIMES)
    return {**row, "rule": schedule.rule, "next_times": [] if is_paused else list(upcoming), "is_late": is_late}


def rule_of(row: Mapping[str, Any]) -> Schedule:
    """Parse the rule of a row. Raises Conflict if this version, or this machine, cannot."""
    seconds = row["interval_seconds"]
    try:
        return Schedule(
            cron=row["cron"], every_seconds=None if seconds is None else round(seconds), timezone=row["timezone"]
        )
    except ValidationError as error:
        reason = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise Conflict(
            f"the schedule {row['schedule_id']!r} cannot be read: {reason}; fix its workflow and run "
            "`dagmaster schedules sync`"
        ) from error


async def schedule_counts(conn: Connection) -> Row:
    [row] = await fetch(conn, "schedule_counts", {"late_seconds": LATE_SECONDS})
    return row


async def missed_schedules(conn: Connection) -> dict[str, Row]:
    """The last failure of each schedule."""
    rows = await fetch(conn, "missed_schedules", {"days": MISSED_DAYS})
    return {row["schedule_id"]: row for row in rows}


async def sync_schedules(
    conn: Connection,
    graphs: Sequence[Graph],
    *,
    ended: Collection[str] = (),
    unready: Collection[str] = (),
    prune: bool = False,
    actor: str | None = None,
    source_app: str = "cli",
) -> Synced:
    """Store the schedules of these workflows; those of `ended` workflows are removed, of `unready` ones kept.

    Other schedules may belong to another server with another folder, so only `prune` removes them.
    """
    [clock] = await fetch(conn, "database_now")
    values = {
        "schedules": encode_rows([_row(graph, clock["now"]) for graph in graphs]) or "[]",
        "workflows": encode_rows([workflow_row(each) for graph in graphs for each in (*graph.called, graph)]) or "[]",
    }
    async with conn.transaction():
        stored = await fetch(conn, "sync_schedules", values)
        kept_ids = [*(graph.workflow.workflow_id for graph in graphs), *unready]
        removed = await fetch(conn, "remove_schedules", {"ended": list(ended), "kept": kept_ids, "prune": prune})
        synced = Synced(
            tuple(row["schedule_id"] for row in stored if row["is_new"]),
            tuple(row["schedule_id"] for row in stored if not row["is_new"]),
            tuple(row["schedule_id"] for row in removed),
        )
        if not synced.is_empty:
            await _note(conn, "schedules.sync", actor, source_app, **asdict(synced))
    return synced


def _row(graph: Graph, now: datetime) -> Row:
    workflow, schedule = graph.workflow, graph.workflow.schedule
    assert schedule is not None
    return {
        "schedule_id": workflow.workflow_id,
        "workflow_id": workflow.workflow_id,
        "workflow_hash": workflow.content_hash,
        "cron": schedule.cron,
        "interval_seconds": schedule.every_seconds,
        "timezone": schedule.timezone,
        "catchup": schedule.catchup,
        "input_params": dict(schedule.inputs),
        "next_at": next_time(schedule, now),
    }


async def pause_schedule(conn: Connection, schedule_id: str, *, actor: str | None, source_app: str = "cli") -> Row:
    """Start no more jobs until it is resumed."""
    await get_schedule(conn, schedule_id)
    async with conn.transaction():
        await run(conn, "pause_schedule", {"schedule_id": schedule_id, "actor": actor})
        await _note(conn, "schedules.pause", actor, source_app, schedule_id=schedule_id)
    return await get_schedule(conn, schedule_id)


async def resume_schedule(conn: Connection, schedule_id: str, *, actor: str | None, source_app: str = "cli") -> Row:
    """Continue with the next future time."""
    row = await get_schedule(conn, schedule_id)
    async with conn.transaction():
        values = {"schedule_id": schedule_id, "next_at": next_time(rule_of(row), row["now"])}
        await run(conn, "resume_schedule", values)
        await _note(conn, "schedules.resume", actor, source_app, schedule_id=schedule_id)
    return await get_schedule(conn, schedule_id)


async def _note(conn: Connection, command: str, actor: str | None, source_app: str, **data: Any) -> None:
    await note_command(conn, {"command": command, "actor": actor, **data}, source_app=source_app)
