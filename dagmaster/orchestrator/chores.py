"""The chores of an orchestrator: periodic work on shared connections."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from time import monotonic

import psycopg

from dagmaster.errors import DatabaseUnavailable
from dagmaster.orchestrator.callbacks import CallbackOptions, Callbacks
from dagmaster.orchestrator.liveness import LeaseJudge
from dagmaster.orchestrator.maintenance import (
    DataReaper,
    Retention,
    RetentionOptions,
    Vacuum,
    clean_up,
    close_late,
    refresh_layers,
)
from dagmaster.orchestrator.orchestrator import Orchestrator
from dagmaster.orchestrator.schedules import POLL_SECONDS, Scheduling
from dagmaster.orchestrator.shared_connection import Connections
from dagmaster.orchestrator.watch import BackPressure, Watch, WatchOptions
from dagmaster.store.connect import LOST, Connection
from dagmaster.store.instances import (
    beat_orchestrator,
    hand_over_jobs,
    mark_dead_lost,
    register_orchestrator,
    rescue_tasks,
    stall_orchestrator,
    take_over_jobs,
)
from dagmaster.store.job_control import cancel_abandoned, cancel_orphans
from dagmaster.store.notifications import MAIL, Notifier
from dagmaster.store.orchestrators import is_orchestrated
from dagmaster.store.tasks import close_stale

log = logging.getLogger(__name__)

TAKE_OVER_AT_ONCE = 500
RETRY_SECONDS = 1.0
MIN_LOCK_SECONDS = 0.1
MAX_LOCK_SECONDS = 2.0
# The heartbeat also publishes the statistics: it is sent at least this often, however long the lease.
PUBLISH_SECONDS = 10.0
FOREVER_SECONDS = 1e9
# A child of this age has a parent attempt that was certainly written before it.
CHILD_AGE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Intervals:
    heartbeat_seconds: float = 30.0
    orphan_scan_seconds: float = 60.0
    orphan_threshold_seconds: float = 120.0
    worker_lost_after_seconds: float = 55.0
    late_mail_seconds: float = 2.0
    vacuum_seconds: float = 5.0
    abandoned_jobs_seconds: float = 15.0
    # A program that ran a job by itself may be suspended for a while, or its machine asleep.
    abandoned_after_seconds: float = 300.0
    housekeeping_seconds: float = 3600.0
    callback_seconds: float = 1.0
    retention_seconds: float = 3600.0
    data_reaper_seconds: float = 20.0
    settle_seconds: float = 1.0  # Chores that are not urgent leave the first moments to the jobs.
    data_retention_days: float = 7.0
    data_url: str = field(default="chdb:", repr=False)  # An engine without tables to drop.
    layers_seconds: float = 60.0
    external_dsn: str | None = field(default=None, repr=False)
    schedule_seconds: float = POLL_SECONDS
    callbacks: CallbackOptions = field(default_factory=CallbackOptions)
    retention: RetentionOptions = field(default_factory=RetentionOptions)
    back_pressure_seconds: float = 1.0
    watch: WatchOptions = field(default_factory=WatchOptions)

    @property
    def rescue_seconds(self) -> float:
        """Often enough to notice a dead worker soon after its lease has expired."""
        return max(0.2, min(self.heartbeat_seconds, self.worker_lost_after_seconds / 3, 5.0))

    @property
    def lock_timeout_seconds(self) -> float:
        """A lock that one chore waits for must not block the others."""
        return max(MIN_LOCK_SECONDS, min(MAX_LOCK_SECONDS, self.worker_lost_after_seconds / 4))


@dataclass(frozen=True, slots=True)
class Chore:
    """`run_once` may return the seconds until it is due again, if that is sooner than usual."""

    name: str
    every_seconds: float
    run_once: Callable[[], Awaitable[float | None]]
    first_after_seconds: float = 0.0

    async def run(self) -> None:
        """Run until cancelled. A failed chore is retried; jobs and other chores continue without it."""
        await asyncio.sleep(self.first_after_seconds)
        while True:
            try:
                sooner = await self.run_once()
                await asyncio.sleep(self.every_seconds if sooner is None else min(sooner, self.every_seconds))
            except (*LOST, DatabaseUnavailable) as error:
                log.debug("%s could not reach the database: %s", self.name, error)
                await asyncio.sleep(min(RETRY_SECONDS, self.every_seconds))
            except psycopg.Error:
                log.exception("%s failed", self.name)
                await asyncio.sleep(max(RETRY_SECONDS, self.every_seconds))


def chores_of(
    orchestrator: Orchestrator, intervals: Intervals, notifier: Notifier, connections: Connections
) -> list[Chore]:
    schedules = Scheduling(threshold_seconds=intervals.orphan_threshold_seconds)
    callbacks = Callbacks(intervals.callbacks)
    opens, lease, shared = connections.opens, connections.lease, connections.maintenance
    settle = intervals.settle_seconds
    return [
        Chore(
            "heartbeat",
            min(intervals.heartbeat_seconds, PUBLISH_SECONDS),
            lease.takes(lambda conn: beat(conn, orchestrator, intervals)),
        ),
        Chore("rescue", intervals.rescue_seconds, shared.takes(Rescue(orchestrator, intervals, notifier).run_once)),
        Chore(
            "adoption",
            intervals.orphan_scan_seconds,
            shared.takes(Adoption(orchestrator, intervals).run_once),
        ),
        Chore("late mail", intervals.late_mail_seconds, shared.takes(close_late)),
        Chore("stale tasks", intervals.late_mail_seconds, shared.takes(close_stale)),
        Chore(
            "abandoned jobs",
            intervals.abandoned_jobs_seconds,
            shared.takes(AbandonedJobs(orchestrator, intervals, notifier).run_once),
            settle,
        ),
        Chore("vacuum", intervals.vacuum_seconds, Vacuum(connections).run_once, settle),
        Chore("housekeeping", intervals.housekeeping_seconds, opens(clean_up), settle),
        Chore("callbacks", intervals.callback_seconds, lambda: callbacks.run_once(shared)),
        Chore("schedules", intervals.schedule_seconds, shared.takes(schedules.run_once)),
        Chore("retention", intervals.retention_seconds, opens(Retention(intervals.retention).run_once), settle),
        Chore(
            "data reaper",
            intervals.data_reaper_seconds,
            DataReaper(connections, intervals.data_retention_days, intervals.data_url).run_once,
            settle,
        ),
        Chore("layers", intervals.layers_seconds, opens(partial(refresh_layers, external_dsn=intervals.external_dsn))),
        Chore("watch", intervals.watch.check_seconds, shared.takes(Watch(orchestrator, intervals.watch).run_once)),
        Chore(
            "back-pressure",
            intervals.back_pressure_seconds,
            shared.takes(BackPressure(orchestrator, intervals.watch).run_once),
        ),
    ]


async def beat(conn: Connection, orchestrator: Orchestrator, intervals: Intervals) -> None:
    """Renew the lease, unless this instance makes no progress: then its jobs are released."""
    orchestrator.liveness.reach_database(2 * min(intervals.heartbeat_seconds, PUBLISH_SECONDS) + RETRY_SECONDS)
    if orchestrator.liveness.stalled_seconds > intervals.orphan_threshold_seconds:
        await give_up_jobs(conn, orchestrator, intervals)
        return
    requested_at = monotonic()
    database_now = await beat_orchestrator(conn, orchestrator.me, len(orchestrator.jobs), orchestrator.summary())
    if database_now is None:
        await register_orchestrator(conn, orchestrator.me)
        orchestrator.forget_all()
        await adopt(conn, orchestrator, intervals)
        return
    orchestrator.clock.adjust(database_now, requested_at, monotonic())
    if orchestrator.liveness.beat(database_now) > intervals.orphan_threshold_seconds:
        log.warning("this orchestrator lost its lease; reloading its jobs")
        orchestrator.forget_all()


async def give_up_jobs(conn: Connection, orchestrator: Orchestrator, intervals: Intervals) -> None:
    """Release the jobs to other instances. This one registers again after its next complete cycle."""
    log.error(
        "this orchestrator has made no progress for %.0f s and releases its jobs: %s",
        orchestrator.liveness.stalled_seconds,
        orchestrator.stats.last_error or "its loop is blocked",
    )
    await stall_orchestrator(conn, orchestrator.me, orchestrator.summary())
    orchestrator.forget_all()
    if await hand_over_jobs(conn, orchestrator.me, threshold_seconds=intervals.orphan_threshold_seconds):
        await conn.execute(f"NOTIFY {MAIL}")


class Rescue:
    """Report the tasks of lost workers to their owners, and adopt the jobs of dead orchestrators at once."""

    def __init__(self, orchestrator: Orchestrator, intervals: Intervals, notifier: Notifier) -> None:
        self._orchestrator, self._intervals, self._notifier = orchestrator, intervals, notifier
        self._judge = LeaseJudge(intervals.worker_lost_after_seconds)
        self._conn: Connection | None = None

    async def run_once(self, conn: Connection) -> None:
        if self._conn is not None and conn is not self._conn:
            self._judge.lose()
        self._conn = conn
        dead = await mark_dead_lost(conn, self._orchestrator.me.host_key)
        lease = self._intervals.worker_lost_after_seconds
        if await rescue_tasks(conn, lost_after_seconds=lease, may_judge=self._judge.may_judge):
            self._notifier.notify(MAIL)
            self._orchestrator.check_mail()
        if dead:
            await adopt(conn, self._orchestrator, self._intervals, may_judge=False)


class Adoption:
    """Adopt jobs whose owner's lease has expired."""

    def __init__(self, orchestrator: Orchestrator, intervals: Intervals) -> None:
        self._orchestrator, self._intervals = orchestrator, intervals
        self._judge = LeaseJudge(intervals.orphan_threshold_seconds + intervals.orphan_scan_seconds)

    async def run_once(self, conn: Connection) -> None:
        # Only to check that the database responds.
        await is_orchestrated(conn, threshold_seconds=self._intervals.orphan_threshold_seconds)
        await adopt(conn, self._orchestrator, self._intervals, may_judge=self._judge.may_judge())


async def adopt(conn: Connection, orchestrator: Orchestrator, intervals: Intervals, *, may_judge: bool = True) -> None:
    """Adopt jobs without a live owner. Unless it `may_judge`, an owner whose lease has expired counts as alive."""
    if orchestrator.liveness.stalled_seconds > intervals.orphan_threshold_seconds:
        return
    threshold = intervals.orphan_threshold_seconds if may_judge else FOREVER_SECONDS
    while True:
        taken = await take_over_jobs(conn, orchestrator.me, threshold_seconds=threshold, limit=TAKE_OVER_AT_ONCE)
        if taken:
            log.info("took over %d job%s", len(taken), "" if len(taken) == 1 else "s")
            orchestrator.stats.jobs_reclaimed += len(taken)
            orchestrator.adopt(taken)
        if len(taken) < TAKE_OVER_AT_ONCE:
            return


class AbandonedJobs:
    """Cancel jobs whose caller has ended without cancelling them: child jobs whose parent attempt is over, and jobs
    that a program ran by itself.
    """

    def __init__(self, orchestrator: Orchestrator, intervals: Intervals, notifier: Notifier) -> None:
        self._orchestrator, self._intervals, self._notifier = orchestrator, intervals, notifier

    async def run_once(self, conn: Connection) -> None:
        children = await cancel_orphans(conn, age_seconds=CHILD_AGE_SECONDS)
        abandoned = await cancel_abandoned(conn, age_seconds=self._intervals.abandoned_after_seconds)
        if children or abandoned:
            self._notifier.notify(MAIL)
            self._orchestrator.check_mail()
