"""An orchestrator's statistics of its own work: recent jobs, failures and durations.

Fed with every committed batch, and written to `dag_orchestrators.stats` with each heartbeat, where any process can read
it. Bounded, and counted since the start of this instance.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from time import monotonic
from typing import Any

from dagmaster.engine.change_set import ChangeSet, Event
from dagmaster.engine.state import JobState, is_executed
from dagmaster.ids import JobId
from dagmaster.model.states import ENDED_WITH_JOB, JobStatus
from dagmaster.store.connect import storable

LAST = 100
MAX_NAMES = 200
MAX_ERROR_SHOWN = 200
WINDOW_SECONDS = 60
# Averages are exact up to this many jobs of a workflow, and moving from then on.
MOVING = 50

JOB_SECONDS = (0.1, 0.5, 1, 5, 10, 30, 60, 300, 900, 3600, 14_400, 86_400)
TASK_SECONDS = (0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 900, 3600)
QUICK_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5, 30)


class Phase(StrEnum):
    IDLE = "idle"
    POLLING_RESULTS = "polling_results"
    EVALUATING_JOBS = "evaluating_jobs"
    DISPATCHING = "dispatching"


@dataclass(slots=True)
class Stats:
    """The counters of this instance since its start."""

    cycles: int = 0
    tasks_dispatched: int = 0
    results_processed: int = 0
    jobs_claimed: int = 0
    jobs_reclaimed: int = 0
    jobs_ended: int = 0
    errors: int = 0
    last_error: str | None = None
    last_cycle_at: datetime | None = None


@dataclass(slots=True)
class Counters:
    jobs_created: int = 0
    jobs_completed: int = 0
    jobs_failed: int = 0
    jobs_cancelled: int = 0
    tasks_created: int = 0
    tasks_completed: int = 0
    tasks_failed: int = 0


class Histogram:
    """Counts of values up to each bound; the last count is of values above all bounds."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def to_dict(self) -> dict[str, Any]:
        return {"bounds": list(self.bounds), "counts": list(self.counts), "sum": round(self.total, 6)}


@dataclass(slots=True)
class Failing:
    failed: int = 0
    last_error: str | None = None


@dataclass(slots=True)
class Record:
    """A workflow's moving averages."""

    ended: int = 0
    avg_duration_seconds: float = 0.0
    success_rate: float = 0.0

    def add(self, seconds: float, *, success: bool) -> None:
        self.ended += 1
        weight = max(1 / self.ended, 1 / MOVING)
        self.avg_duration_seconds += (seconds - self.avg_duration_seconds) * weight
        self.success_rate += (success - self.success_rate) * weight


@dataclass(slots=True)
class Rate:
    """Counts of the last minute, second by second."""

    counts: list[int] = field(default_factory=lambda: [0] * WINDOW_SECONDS)
    at: int = 0

    def add(self, number: int, now: float) -> None:
        self._forget(int(now))
        self.counts[self.at % WINDOW_SECONDS] += number

    def sum(self, now: float) -> int:
        self._forget(int(now))
        return sum(self.counts)

    def _forget(self, second: int) -> None:
        for passed in range(max(self.at + 1, second - WINDOW_SECONDS + 1), second + 1):
            self.counts[passed % WINDOW_SECONDS] = 0
        self.at = max(self.at, second)


class InstanceStats:
    def __init__(self) -> None:
        self.started_at = datetime.now(UTC)
        self._born = monotonic()
        self.counters = Counters()
        self.job_seconds = Histogram(JOB_SECONDS)
        self.task_seconds = Histogram(TASK_SECONDS)
        self.claim_seconds = Histogram(QUICK_SECONDS)
        self.cycle_seconds = Histogram(QUICK_SECONDS)
        self.completions: deque[dict[str, Any]] = deque(maxlen=LAST)
        self.failures: deque[dict[str, Any]] = deque(maxlen=LAST)
        self.handlers: dict[str, Failing] = {}
        self.queues: dict[str, Failing] = {}
        self.workflows: dict[str, Record] = {}
        self.phase = Phase.IDLE
        self.phases = {phase: [0, 0.0] for phase in Phase}
        self.cycle_started_at: datetime | None = None
        self.processing_job_id: JobId | None = None
        self.last_node_id: str | None = None
        self._since = self._cycle_since = monotonic()
        self._ended, self._failed = Rate(), Rate()
        self._on_event = {
            "job_started": self._job_started,
            "node_started": self._task_started,
            "node_completed": self._task_completed,
            "node_failed": self._task_failed,
            **dict.fromkeys(("job_completed", "job_failed", "job_cancelled"), self._job_ended),
        }

    # The loop.

    def enter(self, phase: Phase) -> None:
        """Enter a phase of the loop; the time since the last call belongs to the previous one."""
        now = monotonic()
        spent = self.phases[self.phase]
        spent[0] += 1
        spent[1] += now - self._since
        self.phase, self._since = phase, now

    def begin_cycle(self, at: datetime) -> None:
        self.cycle_started_at = at
        self.enter(Phase.POLLING_RESULTS)
        self._cycle_since = self._since

    def end_cycle(self, *, had_work: bool) -> None:
        self.processing_job_id = None
        self.enter(Phase.IDLE)
        if had_work:
            self.cycle_seconds.observe(self._since - self._cycle_since)

    # Committed batches.

    def record(self, change_sets: Iterable[ChangeSet]) -> None:
        """Count the events of a batch."""
        counters = self.counters
        completed, failed = counters.tasks_completed, counters.tasks_failed
        for changes in change_sets:
            counters.tasks_created += len(changes.dispatches)
            for event in changes.events:
                self.last_node_id = event.node_id or self.last_node_id
                if (count := self._on_event.get(event.event_type)) is not None:
                    count(changes.job, event)
        now = monotonic()
        self._ended.add(counters.tasks_completed - completed, now)
        self._failed.add(counters.tasks_failed - failed, now)

    def _job_started(self, job: JobState, event: Event) -> None:
        self.counters.jobs_created += 1

    def _task_completed(self, job: JobState, event: Event) -> None:
        if is_executed(job.nodes[event.node_id or ""]):
            self.counters.tasks_completed += 1
            self.task_seconds.observe((event.duration_ms or 0) / 1000)

    def _task_started(self, job: JobState, event: Event) -> None:
        node = job.nodes[event.node_id or ""]
        if node.dispatched_at is not None and is_executed(node):
            self.claim_seconds.observe(max((event.created_at - node.dispatched_at).total_seconds(), 0.0))

    def _task_failed(self, job: JobState, event: Event) -> None:
        """Count a failed attempt. Tasks revoked with their job are no failures of their handler."""
        node = job.nodes[event.node_id or ""]
        if not is_executed(node) or (event.event_data or {}).get("ended_by") in ENDED_WITH_JOB:
            return
        self.counters.tasks_failed += 1
        if event.duration_ms is not None:
            self.task_seconds.observe(event.duration_ms / 1000)
        for failing, name in ((self.handlers, node.task.handler), (self.queues, node.task.queue)):
            entry = _renewed(failing, name, Failing)
            entry.failed += 1
            entry.last_error = _shorten(event.error_message)

    def _job_ended(self, job: JobState, event: Event) -> None:
        seconds = job.duration_seconds or 0.0
        if job.started_at is None:
            self.counters.jobs_created += 1  # Cancelled before it started.
        if job.status is JobStatus.CANCELLED:
            self.counters.jobs_cancelled += 1
            return
        workflow_id = job.graph.workflow.workflow_id
        success = job.status is JobStatus.COMPLETED
        entry = {
            "job_id": str(job.job_id),
            "workflow_id": workflow_id,
            "at": job.completed_at,
            "duration_seconds": seconds,
        }
        self.job_seconds.observe(seconds)
        _renewed(self.workflows, workflow_id, Record).add(seconds, success=success)
        if success:
            self.counters.jobs_completed += 1
            self.completions.append(entry)
        else:
            self.counters.jobs_failed += 1
            self.failures.append(entry | {"error": _shorten(job.error)})

    def gave_up(self, job_id: JobId, error: str) -> None:
        """Count a job that failed without a change set, because it could not be processed."""
        self.counters.jobs_failed += 1
        self.failures.append({"job_id": str(job_id), "at": datetime.now(UTC), "error": _shorten(error)})

    # Publication.

    def summary(self) -> dict[str, Any]:
        """Counts are since the start, rates are of the last minute; ids are strings, as everywhere in JSON."""
        now = monotonic()
        ended, failed = self._ended.sum(now), self._failed.sum(now)
        cycles = sum(self.cycle_seconds.counts)
        job_id = self.processing_job_id
        return {
            "started_at": self.started_at,
            "current_phase": self.phase,
            "cycle_started_at": self.cycle_started_at,
            "processing_job_id": None if job_id is None else str(job_id),
            "processing_node_id": self.last_node_id,
            "cycle_duration_avg_ms": round(self.cycle_seconds.total * 1000 / cycles, 3) if cycles else None,
            "throughput_per_second": round(ended / min(WINDOW_SECONDS, max(now - self._born, 1.0)), 3),
            "error_rate": round(failed / (ended + failed), 4) if ended + failed else 0.0,
            "counters": asdict(self.counters),
            "histograms": {
                "job_duration_seconds": self.job_seconds.to_dict(),
                "task_duration_seconds": self.task_seconds.to_dict(),
                "task_claim_latency_seconds": self.claim_seconds.to_dict(),
                "cycle_seconds": self.cycle_seconds.to_dict(),
            },
            "phases": {
                phase.value: {"count": count, "seconds": round(spent, 6)}
                for phase, (count, spent) in self.phases.items()
            },
            "completions": list(self.completions),
            "failures": list(self.failures),
            "failing_handlers": {name: asdict(entry) for name, entry in self.handlers.items()},
            "failing_queues": {name: asdict(entry) for name, entry in self.queues.items()},
            "workflows": {name: asdict(entry) for name, entry in self.workflows.items()},
        }


def _renewed(known: dict[str, Any], name: str, make: Any) -> Any:
    """The entry of this name, made the newest; the least recently used entry makes room."""
    entry = known.pop(name, None) or make()
    known[name] = entry
    if len(known) > MAX_NAMES:
        del known[next(iter(known))]
    return entry


def _shorten(error: str | None) -> str | None:
    return storable(error[:MAX_ERROR_SHOWN]) if error else None
