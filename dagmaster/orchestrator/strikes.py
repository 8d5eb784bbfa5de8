"""Jobs that could not be processed: they are reloaded and retried, and failed if that does not help."""

import logging
from collections import Counter
from collections.abc import Sequence

from dagmaster.ids import JobId
from dagmaster.orchestrator.envelopes import Envelope
from dagmaster.orchestrator.inbox import Inbox
from dagmaster.orchestrator.instance_stats import InstanceStats, Stats
from dagmaster.orchestrator.owned_jobs import OwnedJobs
from dagmaster.store import job_states
from dagmaster.store.connect import Connection, storable

log = logging.getLogger(__name__)

MAX_STRIKES = 3


class Strikes:
    def __init__(self, instance_id: str, jobs: OwnedJobs, inbox: Inbox, stats: Stats, memory: InstanceStats) -> None:
        self._instance_id = instance_id
        self._jobs = jobs
        self._inbox = inbox
        self._stats = stats
        self._memory = memory
        self._strikes: Counter[JobId] = Counter()
        self._too_large: dict[JobId, str] = {}  # jobs of a batch that could not be written, and the reason

    def is_suspect(self, job_id: JobId) -> bool:
        """Whether the job was in a batch that was too large, and must be written alone."""
        return job_id in self._too_large

    def clear(self, job_id: JobId) -> None:
        self._strikes.pop(job_id, None)
        self._too_large.pop(job_id, None)

    async def strike(
        self, conn: Connection, job_id: JobId, envelopes: Sequence[Envelope], error: BaseException
    ) -> None:
        """Reload the job and retry it; fail it after the last strike."""
        self._jobs.drop(job_id)
        self._strikes[job_id] += 1
        self._stats.errors += 1
        self._stats.last_error = storable(f"job {job_id}: {error}")
        if self._strikes[job_id] >= MAX_STRIKES:
            await self.fail(conn, job_id, f"the job cannot be processed: {type(error).__name__}: {error}")
            return
        await job_states.note_error(conn, job_id, f"{type(error).__name__}: {error}", strike=self._strikes[job_id])
        self._inbox.rewind(envelopes)

    def suspect(self, conn: Connection, job_ids: Sequence[JobId], error: BaseException) -> None:
        """Write each job of a batch that was too large alone next time; a job that was alone has failed once.

        Raises the error if it has cost the connection.
        """
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        log.warning("a batch of %d jobs is too large, writing each job alone: %s", len(job_ids), reason)
        self._stats.errors += 1
        self._stats.last_error = storable(f"a batch of {len(job_ids)} jobs is too large: {reason}")
        for job_id in job_ids:
            self._jobs.drop(job_id)
            self._too_large[job_id] = reason
        if len(job_ids) == 1:
            self._strikes[job_ids[0]] += 1
        if conn.closed or conn.broken:
            raise error

    async def fail_too_large(self, conn: Connection, job_id: JobId) -> bool:
        """Fail a job that was too large each time it was written alone; False for all others."""
        if job_id not in self._too_large or self._strikes[job_id] < MAX_STRIKES:
            return False
        reason = self._too_large.pop(job_id)
        self._jobs.drop(job_id)
        advice = "let its tasks return references to data, not the data"
        await self.fail(conn, job_id, f"the job is too large to be written: {reason}; {advice}")
        return True

    async def fail(self, conn: Connection, job_id: JobId, error: str) -> None:
        log.error("failing job %s: %s", job_id, error, extra={"job_id": job_id})
        self._strikes.pop(job_id, None)
        if await job_states.fail_poisoned(conn, self._instance_id, job_id, error):
            self._memory.gave_up(job_id, error)
