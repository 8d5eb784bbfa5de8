"""The jobs that an orchestrator holds in memory, with their timers."""

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime

from dagmaster.engine.change_set import Timer
from dagmaster.engine.messages import TimerDue, TimerKind
from dagmaster.engine.state import JobState
from dagmaster.ids import JobId

COMPACT_ABOVE = 1000


@dataclass(slots=True, eq=False)
class OwnedJob:
    state: JobState
    epoch: int
    timers: list[tuple[datetime, str, int, TimerKind]] = field(default_factory=list)

    def arm(self, timers: Iterable[Timer]) -> None:
        for timer in timers:
            heapq.heappush(self.timers, (timer.at, timer.node_id, timer.attempt, timer.kind))

    def due(self, now: datetime) -> Iterator[TimerDue]:
        while self.timers and self.timers[0][0] <= now:
            _, node_id, attempt, kind = heapq.heappop(self.timers)
            yield TimerDue(kind, node_id, attempt)


class OwnedJobs:
    """Work follows changes: a job that waits costs one entry in a heap, whatever its size."""

    def __init__(self) -> None:
        self._jobs: dict[JobId, OwnedJob] = {}
        self._wakes: list[tuple[datetime, JobId]] = []

    def __len__(self) -> int:
        return len(self._jobs)

    def __contains__(self, job_id: JobId) -> bool:
        return job_id in self._jobs

    def __iter__(self) -> Iterator[JobId]:
        return iter(self._jobs)

    def get(self, job_id: JobId) -> OwnedJob | None:
        return self._jobs.get(job_id)

    def add(self, job: OwnedJob) -> None:
        self._jobs[job.state.job_id] = job

    def drop(self, job_id: JobId) -> None:
        self._jobs.pop(job_id, None)

    def arm(self, job_id: JobId, timers: Iterable[Timer]) -> None:
        job = self._jobs[job_id]
        earliest = job.timers[0][0] if job.timers else None
        job.arm(timers)
        if job.timers and (earliest is None or job.timers[0][0] < earliest):
            self._wake_at(job.timers[0][0], job_id)

    def next_wake(self) -> datetime | None:
        return self._wakes[0][0] if self._wakes else None

    def due(self, now: datetime) -> Iterator[tuple[JobId, TimerDue]]:
        """The timers that are due, by job."""
        while self._wakes and self._wakes[0][0] <= now:
            _, job_id = heapq.heappop(self._wakes)
            job = self._jobs.get(job_id)
            if job is None:
                continue
            for timer in job.due(now):
                yield job_id, timer
            if job.timers:
                self._wake_at(job.timers[0][0], job_id)

    def _wake_at(self, at: datetime, job_id: JobId) -> None:
        heapq.heappush(self._wakes, (at, job_id))
        if len(self._wakes) > COMPACT_ABOVE + 4 * len(self._jobs):
            self._wakes = [(job.timers[0][0], job_id) for job_id, job in self._jobs.items() if job.timers]
            heapq.heapify(self._wakes)
