"""Conditions that an orchestrator watches for: stalled jobs, unclaimed tasks and full queues."""

import logging
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from time import monotonic
from typing import Any

from dagmaster.explain.reasons import stands_without_reason
from dagmaster.ids import JobId
from dagmaster.orchestrator.orchestrator import Orchestrator
from dagmaster.store.audit import note_orchestrator
from dagmaster.store.connect import Connection
from dagmaster.store.queues import queue_depths
from dagmaster.store.tasks import warn_of_stuck_tasks

log = logging.getLogger(__name__)

MAX_JOBS_NAMED = 20


@dataclass(frozen=True, slots=True)
class WatchOptions:
    stall_after_seconds: float = 300.0
    stuck_after_seconds: float = 1800.0
    max_queue_depth: int = 100_000
    resume_queue_depth: int = 80_000
    cycle_event_seconds: float = 3600.0

    @property
    def check_seconds(self) -> float:
        """Often enough for the shortest threshold, within limits."""
        return max(0.05, min(self.stall_after_seconds, self.stuck_after_seconds, 120.0) / 4)


class Watch:
    """The periodic checks, on one connection."""

    def __init__(self, orchestrator: Orchestrator, options: WatchOptions) -> None:
        self._options = options
        self._stall, self._cycle_report = Stall(orchestrator, options), CycleReport(orchestrator, options)

    async def run_once(self, conn: Connection) -> None:
        await self._stall.run_once(conn)
        # Noted in the timeline: which tasks have waited too long, and whether any worker would claim them.
        if stuck := await warn_of_stuck_tasks(conn, after_seconds=self._options.stuck_after_seconds):
            log.warning("%d tasks have waited too long for a worker, including %s", len(stuck), stuck[0])
        await self._cycle_report.run_once(conn)


class Stall:
    """Report stalled jobs, each once until it makes progress again."""

    def __init__(self, orchestrator: Orchestrator, options: WatchOptions) -> None:
        self._orchestrator, self._options = orchestrator, options
        self._reported: dict[JobId, datetime] = {}  # by job: stalled since

    async def run_once(self, conn: Connection) -> None:
        now = self._orchestrator.clock.now()
        stalled = dict(self._stalled(now))
        news = {job_id: since for job_id, since in stalled.items() if self._reported.get(job_id) != since}
        self._reported = stalled
        if not news:
            return
        seconds = (now - min(news.values())).total_seconds()
        log.warning("%d jobs have made no progress for up to %.0f s although nothing blocks them", len(news), seconds)
        data = {
            "instance_id": self._orchestrator.me.instance_id,
            "seconds": round(seconds),
            "jobs": len(news),
            "job_ids": [str(job_id) for job_id in list(news)[:MAX_JOBS_NAMED]],
        }
        await note_orchestrator(conn, "orchestrator_stall", data)

    def _stalled(self, now: datetime) -> Iterator[tuple[JobId, datetime]]:
        after, it = timedelta(seconds=self._options.stall_after_seconds), self._orchestrator
        jobs = [owned.state for job_id in it.jobs if (owned := it.jobs.get(job_id)) is not None]
        for job in jobs:
            since = job.last_progress_at or job.created_at
            if now - since >= after and stands_without_reason(job, now, it.rules, it.closed_queues):
                yield job.job_id, since


class BackPressure:
    """Stop dispatching to a full queue until it is well below its limit."""

    def __init__(self, orchestrator: Orchestrator, options: WatchOptions) -> None:
        self._orchestrator, self._options = orchestrator, options

    async def run_once(self, conn: Connection) -> None:
        depths = await queue_depths(conn)
        closed = self._orchestrator.closed_queues
        full = [queue for queue, depth in depths.items() if depth > self._options.max_queue_depth]
        for queue in sorted(set(full) - closed):
            closed.add(queue)
            await self._note(conn, queue, depths[queue], "closed")
        for queue in sorted(closed):
            if depths.get(queue, 0) < self._options.resume_queue_depth:
                self._orchestrator.open_queue(queue)
                await self._note(conn, queue, depths.get(queue, 0), "open")

    async def _note(self, conn: Connection, queue: str, depth: int, state: str) -> None:
        log.warning("queue %s is %s with %d tasks", queue, state, depth)
        data = {
            "instance_id": self._orchestrator.me.instance_id,
            "queue": queue,
            "depth": depth,
            "limit": self._options.max_queue_depth,
            "state": state,
        }
        await note_orchestrator(conn, "orchestrator_backpressure", data)


class CycleReport:
    """Write an hourly summary of this instance to the timeline."""

    def __init__(self, orchestrator: Orchestrator, options: WatchOptions) -> None:
        self._orchestrator, self._options = orchestrator, options
        self._since, self._before = monotonic(), self._totals()

    async def run_once(self, conn: Connection) -> None:
        seconds = monotonic() - self._since
        if seconds < self._options.cycle_event_seconds:
            return
        totals = self._totals()
        done = {name: value - self._before[name] for name, value in totals.items()}
        self._since, self._before = monotonic(), totals
        data = {"instance_id": self._orchestrator.me.instance_id, "seconds": round(seconds), **done}
        await note_orchestrator(conn, "orchestrator_cycle", data, status="info")

    def _totals(self) -> dict[str, Any]:
        stats, memory = self._orchestrator.stats, self._orchestrator.memory
        return {
            "cycles": stats.cycles,
            "results_processed": stats.results_processed,
            "errors": stats.errors,
            "busy_seconds": round(memory.cycle_seconds.total, 3),
            **asdict(memory.counters),
        }
