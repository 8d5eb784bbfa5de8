"""The chores of an orchestrator: each does one thing, now and then, on a connection of its own."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from time import monotonic

import psycopg

from dagmaster.errors import DatabaseUnavailable
from dagmaster.orchestrator.callbacks import CallbackOptions, Callbacks
from dagmaster.orchestrator.orchestrator import Orchestrator
from dagmaster.orchestrator.retention import Retention, RetentionOptions
from dagmaster.orchestrator.scheduling import LOOK_SECONDS, Scheduling
from dagmaster.orchestrator.watch import BackPressure, Watch, WatchOptions
from dagmaster.store.care import vacuum_hot_tables
from dagmaster.store.connect import LOST, Connection, connect
from dagmaster.store.events import ensure_partitions
from dagmaster.store.instances import (
    beat_orchestrator,
    bury_dead,
    forget_instances,
    register_orchestrator,
    rescue_tasks,
    take_over_jobs,
)
from dagmaster.store.jobs import call_off_orphans
from dagmaster.store.mailbox import close_late_mail
from dagmaster.store.signals import MAIL, Notifier
from dagmaster.store.tasks import close_stale

log = logging.getLogger(__name__)

TAKE_OVER_AT_ONCE = 500
DEAD_ROWS = 5000
FORGET_AFTER_DAYS = 7
RETRY_SECONDS = 1.0
KEEP_OPEN_SECONDS = 30.0
# Others read what an orchestrator has done from its heartbeat: however seldom it must beat, they want to know.
TELL_SECONDS = 10.0
FOREVER_SECONDS = 1e9
# So old is a child whose caller was certainly written before it.
CHILD_AGE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Intervals:
    heartbeat_seconds: float = 30.0
    orphan_scan_seconds: float = 60.0
    orphan_threshold_seconds: float = 120.0
    worker_lost_after_seconds: float = 55.0
    late_mail_seconds: float = 2.0
    vacuum_seconds: float = 5.0
    children_seconds: float = 15.0
    housekeeping_seconds: float = 3600.0
    callback_seconds: float = 1.0
    retention_seconds: float = 3600.0
    schedule_seconds: float = LOOK_SECONDS
    callbacks: CallbackOptions = field(default_factory=CallbackOptions)
    retention: RetentionOptions = field(default_factory=RetentionOptions)
    back_pressure_seconds: float = 1.0
    watch: WatchOptions = field(default_factory=WatchOptions)

    @property
    def rescue_seconds(self) -> float:
        """Often enough that a worker's death is seen soon after its lease is over."""
        return max(0.2, min(self.heartbeat_seconds, self.worker_lost_after_seconds / 3, 5.0))


@dataclass(frozen=True, slots=True)
class Chore:
    name: str
    every_seconds: float
    run_once: Callable[[Connection], Awaitable[None]]

    async def run(self, dsn: str) -> None:
        """Until cancelled. A lost connection is opened again; the chore is tried again."""
        while True:
            try:
                conn = await connect(dsn, application=f"dagmaster {self.name}", durable=False)
                async with conn:
                    await self.run_once(conn)
                    while self.every_seconds <= KEEP_OPEN_SECONDS:
                        await asyncio.sleep(self.every_seconds)
                        await self.run_once(conn)
                await asyncio.sleep(self.every_seconds)
            except (*LOST, DatabaseUnavailable) as error:
                log.debug("%s lost its connection: %s", self.name, error)
                await asyncio.sleep(min(RETRY_SECONDS, self.every_seconds))
            except psycopg.Error:  # A chore that fails is tried again; the jobs go on without it.
                log.exception("%s failed", self.name)
                await asyncio.sleep(max(RETRY_SECONDS, self.every_seconds))


def chores_of(orchestrator: Orchestrator, intervals: Intervals, notifier: Notifier) -> list[Chore]:
    schedules = Scheduling(threshold_seconds=intervals.orphan_threshold_seconds)
    return [
        Chore(
            "heartbeat",
            min(intervals.heartbeat_seconds, TELL_SECONDS),
            lambda conn: beat(conn, orchestrator, intervals),
        ),
        Chore("rescue", intervals.rescue_seconds, Rescue(orchestrator, intervals, notifier).run_once),
        Chore("adoption", intervals.orphan_scan_seconds, lambda conn: adopt(conn, orchestrator, intervals)),
        Chore("late mail", intervals.late_mail_seconds, close_late),
        Chore("stale tasks", intervals.late_mail_seconds, close_stale),
        Chore("children", intervals.children_seconds, Children(orchestrator, notifier).run_once),
        Chore("vacuum", intervals.vacuum_seconds, vacuum),
        Chore("housekeeping", intervals.housekeeping_seconds, keep_house),
        Chore("callbacks", intervals.callback_seconds, Callbacks(intervals.callbacks).run_once),
        Chore("schedules", intervals.schedule_seconds, schedules.run_once),
        Chore("retention", intervals.retention_seconds, Retention(intervals.retention).run_once),
        Chore("watch", intervals.watch.look_seconds, Watch(orchestrator, intervals.watch).run_once),
        Chore("back-pressure", intervals.back_pressure_seconds, BackPressure(orchestrator, intervals.watch).run_once),
    ]


async def beat(conn: Connection, orchestrator: Orchestrator, intervals: Intervals) -> None:
    """Say that this instance lives, unless its loop stands still: then its jobs are better off elsewhere."""
    last = orchestrator.stats.last_cycle_at
    now = orchestrator.clock.now()
    stalled = last is not None and (now - last).total_seconds() > intervals.orphan_threshold_seconds
    if stalled:
        log.warning("the loop has not moved since %s; not beating", last)
        return
    asked = datetime.now(UTC)
    database_now = await beat_orchestrator(conn, orchestrator.me, len(orchestrator.jobs), orchestrator.summary())
    if database_now is None:
        await register_orchestrator(conn, orchestrator.me)
        orchestrator.forget_all()
        return
    orchestrator.clock.adjust(database_now, asked, datetime.now(UTC))
    if orchestrator.beaten(database_now) > intervals.orphan_threshold_seconds:
        log.warning("this orchestrator was away for too long; reading its jobs anew")
        orchestrator.forget_all()


class Rescue:
    """Tasks whose worker is gone go back to their owners; jobs whose owner is gone for certain are adopted at once."""

    def __init__(self, orchestrator: Orchestrator, intervals: Intervals, notifier: Notifier) -> None:
        self._orchestrator, self._intervals, self._notifier = orchestrator, intervals, notifier
        self._conn: Connection | None = None
        self._patient_until = 0.0

    async def run_once(self, conn: Connection) -> None:
        dead = await bury_dead(conn, self._orchestrator.me.host_key)
        if await rescue_tasks(conn, lost_after_seconds=self._lost_after(conn)):
            self._notifier.notify(MAIL)
            self._orchestrator.look()
        if dead:
            await adopt(conn, self._orchestrator, self._intervals)

    def _lost_after(self, conn: Connection) -> float:
        """While the database was out of reach no worker could beat: afterwards each has a whole lease to do so."""
        now, lease = monotonic(), self._intervals.worker_lost_after_seconds
        if self._conn is not None and conn is not self._conn:
            self._patient_until = now + lease
        self._conn = conn
        return FOREVER_SECONDS if now < self._patient_until else lease


async def adopt(conn: Connection, orchestrator: Orchestrator, intervals: Intervals) -> None:
    """Take over jobs that have no living owner."""
    while True:
        taken = await take_over_jobs(
            conn,
            orchestrator.me,
            threshold_seconds=intervals.orphan_threshold_seconds,
            limit=TAKE_OVER_AT_ONCE,
        )
        if taken:
            log.info("took over %d jobs", len(taken))
            orchestrator.stats.jobs_reclaimed += len(taken)
            orchestrator.adopt(taken)
        if len(taken) < TAKE_OVER_AT_ONCE:
            return


class Children:
    """Jobs whose caller ended while its owner could not tell them."""

    def __init__(self, orchestrator: Orchestrator, notifier: Notifier) -> None:
        self._orchestrator, self._notifier = orchestrator, notifier

    async def run_once(self, conn: Connection) -> None:
        if await call_off_orphans(conn, age_seconds=CHILD_AGE_SECONDS):
            self._notifier.notify(MAIL)
            self._orchestrator.look()


async def close_late(conn: Connection) -> None:
    await close_late_mail(conn)


async def vacuum(conn: Connection) -> None:
    await vacuum_hot_tables(conn, dead_rows=DEAD_ROWS)


async def keep_house(conn: Connection) -> None:
    await ensure_partitions(conn)
    await forget_instances(conn, days=FORGET_AFTER_DAYS)
