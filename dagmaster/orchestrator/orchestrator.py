"""An orchestrator: owns jobs in memory, processes their messages and writes each batch in one transaction."""

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import asdict
from datetime import timedelta
from typing import Any

import psycopg

from dagmaster.engine.change_set import ChangeSet, Rules
from dagmaster.engine.decide import decide
from dagmaster.engine.messages import QueueOpened
from dagmaster.engine.needs import values_needed
from dagmaster.errors import DagmasterError
from dagmaster.ids import JobId
from dagmaster.logs import about
from dagmaster.orchestrator import tracing
from dagmaster.orchestrator.child_jobs import start_children
from dagmaster.orchestrator.clock import DatabaseClock
from dagmaster.orchestrator.envelopes import Envelope, by_job, from_mail, messages
from dagmaster.orchestrator.inbox import Inbox
from dagmaster.orchestrator.instance_stats import InstanceStats, Phase, Stats
from dagmaster.orchestrator.job_loader import Definitions, JobLoader
from dagmaster.orchestrator.liveness import Liveness
from dagmaster.orchestrator.owned_jobs import OwnedJob, OwnedJobs
from dagmaster.orchestrator.pending_batch import PendingBatch, commit_pending
from dagmaster.orchestrator.strikes import Strikes
from dagmaster.queues.contract import LocalWorker, TaskReport
from dagmaster.store import job_states, mail_codec
from dagmaster.store.batch import Batch, OwnershipLost, settle_versions
from dagmaster.store.connect import LOST, Connection, is_too_large, is_transient
from dagmaster.store.instances import Instance, this_instance
from dagmaster.store.mail_payload import read_payload
from dagmaster.store.mailbox import add_mail
from dagmaster.store.notifications import MAIL, TASKS, Notifier

log = logging.getLogger(__name__)


class Orchestrator:
    def __init__(self, rules: Rules, notifier: Notifier, *, poll_interval_seconds: float = 1.0) -> None:
        self.me: Instance = this_instance()
        self.rules = rules
        self.closed_queues: set[str] = set()
        self.clock = DatabaseClock()
        self.jobs = OwnedJobs()
        self.definitions = Definitions()
        self.stats = Stats()
        self.memory = InstanceStats()
        self.liveness = Liveness()
        self.local: LocalWorker | None = None
        self._notifier = notifier
        instance_id = self.me.instance_id
        self.inbox = Inbox(instance_id, self.jobs, rules, timedelta(seconds=poll_interval_seconds))
        self._strikes = Strikes(instance_id, self.jobs, self.inbox, self.stats, self.memory)
        self._loader = JobLoader(instance_id, rules, self.jobs, self.definitions, self._strikes, self.stats)

    # For other parts of this process.

    def check_mail(self) -> None:
        """Read the mailbox soon: mail may have arrived."""
        self.inbox.check_mail()

    def hear(self, _channel: str, payload: str) -> None:
        """Take the mail of a notification, or read the mailbox soon."""
        mail = read_payload(payload) if payload else None
        if mail is None or (mail.job is not None and mail.job["workflow_hash"] not in self.definitions):
            self.inbox.check_mail()
        else:
            self.inbox.deliver(mail)

    def adopt(self, job_ids: Iterable[JobId]) -> None:
        """Load jobs that this instance has come to own."""
        self.inbox.load(job_ids)

    def deliver(self, report: TaskReport) -> bool:
        """Take a local worker's report if its job is in memory. Large reports are rejected and go by mail."""
        if self.local is None or report.job_id not in self.jobs or len(report.output or b"") > self.rules.inline_bytes:
            return False
        self.inbox.extend([Envelope(report.job_id, report.message(self.local.worker_id, self.clock.now()))])
        return True

    def summary(self) -> dict[str, Any]:
        """The state of this instance, as its heartbeat publishes it."""
        return {
            **asdict(self.stats),
            "current_cycle_id": self.stats.cycles,
            "no_progress_seconds": round(self.liveness.seconds_without_progress, 1),
            **self.memory.summary(),
        }

    def open_queue(self, queue: str) -> None:
        """Dispatch the tasks that waited for room in this queue."""
        self.closed_queues.discard(queue)
        self.inbox.extend(
            Envelope(job_id, QueueOpened(queue))
            for job_id in self.jobs
            if (job := self.jobs.get(job_id)) is not None and queue in job.state.backlog
        )

    def forget_all(self) -> None:
        """Reload all jobs that are still owned: memory may be out of date."""
        job_ids = list(self.jobs)
        for job_id in job_ids:
            self.jobs.drop(job_id)
        self.inbox.load(job_ids)

    async def forward_reports(self, conn: Connection) -> None:
        """Mail the reports that were not processed to the next owners, before this instance ends."""
        await self._forward(conn, self.inbox.clear())

    # The loop.

    async def run(self, conn: Connection, stop: asyncio.Event) -> None:
        """Run cycles until `stop` or until the connection is lost."""
        while not stop.is_set():
            if not await self.cycle(conn):
                await self.inbox.wait(self.clock.now())
            else:
                await asyncio.sleep(0)

    def interrupt(self) -> None:
        self.inbox.interrupt()

    async def cycle(self, conn: Connection) -> bool:
        """Process one round of messages; False if there was none."""
        self.inbox.begin_cycle()
        self.stats.cycles += 1
        self.stats.last_cycle_at = now = self.clock.now()
        self.liveness.begin_cycle()
        self.memory.begin_cycle(now)
        reports, others = self.inbox.collect(now)
        envelopes = [*reports, *others]
        unprocessed = by_job(envelopes)
        try:
            # Mail comes first: a task whose result is in the mailbox has not timed out, and the checkpoints and added
            # nodes of a local task were mailed before it ended.
            mail = await self.inbox.read_mail(conn, now)
            if not mail.is_all:
                others = await self.inbox.hold_timers(conn, mail, others)
                self.inbox.put_back(reports)
                reports = []
            envelopes = [*from_mail(mail), *reports, *others]
            self.memory.enter(Phase.EVALUATING_JOBS)
            unprocessed = by_job(envelopes)
            rows = {envelope.job_id: envelope.job for envelope in envelopes if envelope.job is not None}
            fresh = await self._loader.load(conn, [job_id for job_id in unprocessed if job_id not in self.jobs], rows)
            await self._advance(conn, unprocessed, fresh)
        except BaseException:
            self.inbox.rewind(envelope for envelopes in unprocessed.values() for envelope in envelopes)
            raise
        finally:
            self.memory.end_cycle(had_work=bool(envelopes))
        self.liveness.complete_cycle()
        return bool(envelopes)

    async def _advance(self, conn: Connection, envelopes: dict[JobId, list[Envelope]], fresh: set[JobId]) -> None:
        """Decide, write, and act only after the commit. Processed jobs are removed from `envelopes`."""
        strays = [envelope for job_id, its in envelopes.items() if job_id not in self.jobs for envelope in its]
        await self._forward(conn, strays)
        for envelope in strays:
            envelopes.pop(envelope.job_id, None)
        slow = {job_id for job_id, its in envelopes.items() if any(envelope.is_slow for envelope in its)}
        await self._advance_jobs(conn, [job_id for job_id in envelopes if job_id not in slow], envelopes, fresh)
        await self._advance_jobs(conn, [job_id for job_id in envelopes if job_id in slow], envelopes, fresh)

    async def _advance_jobs(
        self, conn: Connection, job_ids: Iterable[JobId], envelopes: dict[JobId, list[Envelope]], fresh: set[JobId]
    ) -> None:
        pending = self._new_batch(envelopes)
        for job_id in job_ids:
            if await self._strikes.fail_too_large(conn, job_id):
                del envelopes[job_id]
                continue
            is_suspect = self._strikes.is_suspect(job_id)
            if pending.batch.change_sets and (is_suspect or pending.bytes >= self.rules.max_change_set_bytes):
                await self._write(conn, pending)
                pending = self._new_batch(envelopes)
            job = self.jobs.get(job_id)
            if job is None:  # Dropped while other jobs were written.
                self.inbox.rewind(envelopes.pop(job_id))
                continue
            changes = await self._decide(conn, job, envelopes, is_new=job_id in fresh)
            if changes is None:
                continue
            pending.add(changes, job.epoch, envelopes[job_id])
            if is_suspect:
                await self._write(conn, pending)
                pending = self._new_batch(envelopes)
        if pending.batch.change_sets:
            await self._write(conn, pending)

    def _new_batch(self, envelopes: dict[JobId, list[Envelope]]) -> PendingBatch:
        return PendingBatch(Batch(self.me.instance_id, self.local.worker_id if self.local else None), envelopes)

    async def _decide(
        self, conn: Connection, job: OwnedJob, envelopes: dict[JobId, list[Envelope]], *, is_new: bool
    ) -> ChangeSet | None:
        """The changes of one job; None if it cannot be processed.

        Large values are loaded for this change set only. The clock is read again: the cycle may have waited for mail.
        """
        state, job_id = job.state, job.state.job_id
        job_messages = messages(envelopes[job_id], is_new=is_new, cancel_first=self._strikes.is_suspect(job_id))
        self.memory.processing_job_id = job_id
        try:
            node_ids = values_needed(state, job_messages, self.rules)
            loaded = await job_states.load_values(conn, job_id, node_ids) if node_ids else None
            return decide(state, job_messages, self.clock.now(), self.rules, loaded, self.closed_queues)
        except LOST as error:
            if not is_too_large(error):
                raise
            self.inbox.rewind(envelopes.pop(job_id))
            self._strikes.suspect(conn, [job_id], error)
        except Exception as error:  # One bad job never stops another, whatever is wrong with it.
            if any(envelope.payload is not None for envelope in envelopes[job_id]):
                log.info("job %s cannot be processed with delivered mail; reading its mailbox", job_id)
                self.inbox.rewind(envelopes.pop(job_id))
                return None
            log.exception("job %s cannot be processed", job_id, extra={"job_id": job_id})
            await self._strikes.strike(conn, job_id, envelopes.pop(job_id), error)
        return None

    async def _forward(self, conn: Connection, strays: Iterable[Envelope]) -> None:
        """Mail a local worker's reports to the orchestrator that has taken over their jobs."""
        reports = ((envelope.job_id, envelope.unmailed_report) for envelope in strays)
        mail = [mail_codec.encode(job_id, report) for job_id, report in reports if report is not None]
        if mail:
            await add_mail(conn, mail)
            self._notifier.notify(MAIL)

    async def _write(self, conn: Connection, pending: PendingBatch) -> None:
        self.memory.enter(Phase.DISPATCHING)
        try:
            await commit_pending(conn, pending, self.local, self._notifier)
        except BaseException as error:  # noqa: BLE001 - after any error, memory and rows may differ
            await self._undo(conn, pending, error)
            return
        for job_id in pending.job_ids:
            del pending.envelopes[job_id]
        settle_versions(pending.batch)
        self.memory.record(pending.change_sets)
        self._act(pending)
        await self._start_children(conn, pending.change_sets)

    def _act(self, pending: PendingBatch) -> None:
        """After the commit: arm timers, start local tasks, wake the workers and drop the jobs that have ended."""
        for changes in pending.change_sets:
            job_id = changes.job.job_id
            self._strikes.clear(job_id)
            self.stats.results_processed += len(changes.results)
            self.stats.tasks_dispatched += len(changes.dispatches)
            if changes.is_over:
                self.jobs.drop(job_id)
                self.stats.jobs_ended += 1
                tracing.trace_ended(changes.job)
                continue
            if job_id in self.jobs:  # Otherwise it was dropped during the commit, and will be reloaded.
                self.jobs.arm(job_id, changes.timers)
            self.inbox.follow_up(Envelope(job_id, message) for message in changes.follow_ups)
        if self.local is not None:
            for message in pending.local:
                self.local.start(message)
            if pending.queues:
                self.local.expect_more(pending.queues)
        if pending.queues and not pending.batch.calls_workers:
            self._notifier.notify(TASKS)

    async def _start_children(self, conn: Connection, change_sets: list[ChangeSet]) -> None:
        """Submit the child jobs that nodes have started, and notify the owners of cancelled ones."""
        if any(changes.new_child_jobs for changes in change_sets):
            self.inbox.extend(
                await start_children(conn, change_sets, self.definitions, self.me.instance_id, self.clock.now())
            )
            self.check_mail()
        if any(changes.cancelled_children for changes in change_sets):
            self._notifier.notify(MAIL)
            self.check_mail()

    async def _undo(self, conn: Connection, pending: PendingBatch, error: BaseException) -> None:
        """Reload the jobs of a batch that may not have been written."""
        job_ids = pending.job_ids
        for job_id in job_ids:
            self.jobs.drop(job_id)
        self.inbox.check_mail()
        if is_too_large(error):
            self._rewind(pending)
            self._strikes.suspect(conn, job_ids, error)
            return
        match error:
            case OwnershipLost():
                log.warning("%d jobs were taken over by another orchestrator", len(error.job_ids))
                self._rewind(pending)  # All of them: a lost job may be owned again, under a new epoch.
            case psycopg.Error() | DagmasterError() if not is_transient(error) and pending.batch.has_delivered:
                log.info("%d jobs cannot be written with delivered mail; reading their mailbox", len(job_ids))
                self._rewind(pending)
            case psycopg.Error() | DagmasterError() if not is_transient(error) and len(job_ids) > 1:
                log.warning("a batch of %d jobs failed, retrying each job alone: %s", len(job_ids), error)
                for job_id in job_ids:
                    await self._advance_alone(conn, job_id, pending.envelopes.pop(job_id))
            case psycopg.Error() | DagmasterError() if not is_transient(error):
                await self._strikes.strike(conn, job_ids[0], pending.envelopes.pop(job_ids[0]), error)
            case _:
                raise error

    def _rewind(self, pending: PendingBatch) -> None:
        self.inbox.rewind(envelope for job_id in pending.job_ids for envelope in pending.envelopes.pop(job_id))

    async def _advance_alone(self, conn: Connection, job_id: JobId, envelopes: list[Envelope]) -> None:
        with about(job_id=job_id):
            fresh = await self._loader.load(conn, [job_id])
            await self._advance(conn, {job_id: envelopes}, fresh)
