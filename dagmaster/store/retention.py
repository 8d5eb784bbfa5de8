"""Remove finished jobs when they are old enough, in small batches beside the running work."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, date, datetime
from typing import Any, Final

import psycopg

from dagmaster.errors import Conflict
from dagmaster.ids import JobId
from dagmaster.store.audit import note_command
from dagmaster.store.connect import Connection, Row
from dagmaster.store.statements import fetch, fetch_one, run

JOBS_AT_ONCE: Final = 100
ROWS_AT_ONCE: Final = 5000
DEFINITIONS_AT_ONCE: Final = 500
PAUSE_SECONDS: Final = 0.02
BEGINNING: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Limits:
    """How long jobs are kept: overall, and by the hash of a definition with its own retention."""

    days: float | None
    own: Mapping[str, float] = field(default_factory=dict)
    workflow_id: str | None = None

    @property
    def least_days(self) -> float | None:
        return min([*self.own.values(), *([] if self.days is None else [self.days])], default=None)

    @property
    def values(self) -> Row:
        hashes, days = list(self.own), list(self.own.values())
        return {"days": self.days, "hashes": hashes, "own_days": days, "workflow_id": self.workflow_id}


@dataclass(frozen=True, slots=True)
class Removal:
    """A batch of jobs to remove. They ended on the same day."""

    batch: str
    day: date
    job_ids: Sequence[JobId]
    size: int | None
    last_created_at: datetime
    is_exported: bool
    wants_export: bool


@dataclass(slots=True)
class Removed:
    jobs: int = 0
    nodes: int = 0
    results: int = 0
    events: int = 0
    event_days: int = 0
    definitions: int = 0
    cached_results: int = 0


Export = Callable[[Connection, Removal], Awaitable[None]]
Forget = Callable[[Sequence[JobId]], Awaitable[None]]


async def read_limits(conn: Connection, days: float | None, workflow_id: str | None = None) -> Limits:
    rows = await fetch(conn, "own_retentions")
    return Limits(days, {row["workflow_hash"]: row["days"] for row in rows}, workflow_id)


async def preview(conn: Connection, limits: Limits) -> list[Row]:
    """What `remove_old` would remove, by workflow."""
    return await fetch(conn, "preview_removal", limits.values)


async def remove_old(
    conn: Connection,
    limits: Limits,
    *,
    export: Export | None = None,
    forget: Forget | None = None,
    on_progress: Callable[[Removed], None] | None = None,
) -> Removed:
    """Remove everything older than its limit; raises Conflict while another process does.

    `export` is called before the removal, and `forget` removes data that is stored elsewhere.
    """
    removed = Removed()
    async with _alone(conn):
        kept_since = await _first_kept_day(conn, limits)
        async for removal in _removals(conn, limits, wants_export=export is not None):
            if export is not None and not removal.is_exported:
                await export(conn, removal)
                await run(conn, "note_export", {"job_ids": list(removal.job_ids)})
            if forget is not None:
                await forget(removal.job_ids)
            await _finish(conn, removal, kept_since, removed)
            if on_progress is not None:
                on_progress(removed)
            await asyncio.sleep(PAUSE_SECONDS)
        removed.event_days = await _drop_days(conn, limits, kept_since)
        removed.definitions = await _remove_definitions(conn)
        removed.cached_results = await _repeat(conn, "remove_expired_results", {"limit": ROWS_AT_ONCE})
    return removed


async def note_removal(conn: Connection, removed: Removed, *, actor: str, source_app: str) -> None:
    await note_command(conn, {"command": "jobs.prune", "actor": actor, **asdict(removed)}, source_app=source_app)


@asynccontextmanager
async def _alone(conn: Connection) -> AsyncIterator[None]:
    [row] = await fetch(conn, "lock_retention")
    if not row["is_mine"]:
        raise Conflict("old jobs are being removed by another process at this moment; try again later")
    await run(conn, "settle_for_removal")
    try:
        yield
    finally:
        # A lost connection has released both.
        if not conn.closed:
            await run(conn, "settle_as_before")
            await run(conn, "unlock_retention")


async def _removals(conn: Connection, limits: Limits, *, wants_export: bool) -> AsyncIterator[Removal]:
    """Resume interrupted removals first, then yield batches until no job is old enough."""
    for row in await fetch(conn, "marked_for_removal"):
        removal = Removal(**row)
        # Jobs marked for export wait for a process that exports.
        if wants_export or removal.is_exported or not removal.wants_export:
            yield removal
    position = {"after_at": BEGINNING, "after_id": 0}
    while limits.least_days is not None:
        values = {
            **limits.values,
            **position,
            "jobs": JOBS_AT_ONCE,
            "rows": ROWS_AT_ONCE,
            "least_days": limits.least_days,
            "wants_export": wants_export,
        }
        marked = await fetch_one(conn, "mark_for_removal", values)
        if marked is None:
            return
        removal = Removal(**marked)
        position = {"after_at": removal.last_created_at, "after_id": removal.job_ids[-1]}
        yield removal


async def _finish(conn: Connection, removal: Removal, kept_since: datetime, removed: Removed) -> None:
    values = {"job_ids": list(removal.job_ids), "kept_since": kept_since, "limit": ROWS_AT_ONCE}
    if removal.size is None or removal.size > ROWS_AT_ONCE:
        await _remove_slices(conn, values, removed)
    try:
        [row] = await fetch(conn, "remove_jobs", values)
    except psycopg.errors.LockNotAvailable:
        return  # They are marked; the next pass removes them.
    removed.jobs += row["jobs"]
    removed.nodes += row["nodes"]
    removed.results += row["results"]
    removed.events += row["events"]


async def _remove_slices(conn: Connection, values: Row, removed: Removed) -> None:
    """Remove the rows of large jobs, each slice in its own transaction. Nodes go last: they show the job's size."""
    rows = await fetch(conn, "still_marked", values)
    values = {**values, "job_ids": [row["job_id"] for row in rows]}
    for name in ("remove_some_checkpoints", "remove_some_groups", "remove_some_dependencies"):
        await _repeat(conn, name, values)
    removed.events += await _repeat(conn, "remove_some_events", values)
    removed.results += await _repeat(conn, "remove_some_results", values)
    removed.nodes += await _repeat(conn, "remove_some_nodes", values)


async def _repeat(conn: Connection, name: str, values: Mapping[str, Any]) -> int:
    """Repeat until no rows are left."""
    total = 0
    while count := (await run(conn, name, values)).rowcount:
        total += count
        await asyncio.sleep(PAUSE_SECONDS)
    return total


async def _first_kept_day(conn: Connection, limits: Limits) -> datetime:
    """Events before it are not removed one by one: all their jobs go, and then whole partitions."""
    first = BEGINNING
    for day in await fetch(conn, "event_days") if limits.least_days is not None else ():
        if await _is_kept(conn, limits, day, gone_only=False):
            break
        first = day["high"]
    return first


async def _is_kept(conn: Connection, limits: Limits, day: Mapping[str, Any], *, gone_only: bool) -> bool:
    values = {**limits.values, "low": day["low"], "high": day["high"], "gone_only": gone_only}
    [row] = await fetch(conn, "day_is_kept", values)
    return bool(row["is_kept"])


async def _drop_days(conn: Connection, limits: Limits, kept_since: datetime) -> int:
    """A partition that cannot be locked at once is left for the next run: nothing should wait for this."""
    dropped = 0
    for day in await fetch(conn, "event_days"):
        if day["high"] > kept_since or await _is_kept(conn, limits, day, gone_only=True):
            break
        try:
            await conn.execute(day["command"])
        except psycopg.errors.LockNotAvailable:
            break
        dropped += 1
    return dropped


async def _remove_definitions(conn: Connection) -> int:
    rows = await fetch(conn, "unused_definitions", {"limit": DEFINITIONS_AT_ONCE})
    if not rows:
        return 0
    try:
        async with conn.transaction():
            await run(conn, "hold_submissions")
            cursor = await run(conn, "remove_definitions", {"hashes": [row["workflow_hash"] for row in rows]})
    except psycopg.errors.LockNotAvailable:
        return 0
    return cursor.rowcount
