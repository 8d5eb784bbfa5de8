"""An orchestrator: holds its jobs in memory, takes in what arrives, and writes each batch in one transaction."""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from time import monotonic
from types import MappingProxyType
from typing import Any

import psycopg

from dagmaster.engine.change_set import ChangeSet, Rules
from dagmaster.engine.decide import claim_here, decide
from dagmaster.engine.messages import Load, QueueOpened, TimerDue
from dagmaster.engine.needs import values_needed
from dagmaster.errors import DagmasterError
from dagmaster.ids import JobId
from dagmaster.logs import about
from dagmaster.orchestrator import tracing
from dagmaster.orchestrator.child_jobs import start_children
from dagmaster.orchestrator.clock import DatabaseClock
from dagmaster.orchestrator.definitions import Definitions
from dagmaster.orchestrator.envelopes import Envelope, by_job, from_mail, messages
from dagmaster.orchestrator.handoff import queues_called, task_of
from dagmaster.orchestrator.instance_stats import InstanceStats, Phase
from dagmaster.orchestrator.owned_jobs import OwnedJob, OwnedJobs
from dagmaster.queues.contract import LocalWorker, TaskMessage, TaskReport
from dagmaster.store import job_states, mail_codec, poisoned_jobs
from dagmaster.store.batch import Batch, OwnershipLost, commit, settle_versions
from dagmaster.store.connect import LOST, Connection, is_too_large, may_pass, storable
from dagmaster.store.instances import Instance, this_instance
from dagmaster.store.mailbox import Arrived, add_mail, jobs_with_mail, read_mail
from dagmaster.store.notifications import MAIL, TASKS, Notifier

log = logging.getLogger(__name__)

MAX_MAIL = 2000
# While large mail waits: small mail of other jobs is looked for further on, and a cycle takes less, to look again soon.
WIDE_WINDOW = 10 * MAX_MAIL
MAIL_SHARE = 4
MAX_ENVELOPES = 4000
MAX_EXPANSIONS = 4
MAX_STRIKES = 3


@dataclass(slots=True)
class Stats:
    """What this instance has done since it started."""

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
class _Work:
    """One batch on its way."""

    batch: Batch
    envelopes: dict[JobId, list[Envelope]]
    local: list[TaskMessage] = field(default_factory=list)
    queues: set[str] = field(default_factory=set)
    bytes: int = 0

    def add(self, changes: ChangeSet, epoch: int, envelopes: Sequence[Envelope]) -> None:
        self.batch.change_sets.append((changes, epoch))
        self.batch.mail += [envelope.mail_id for envelope in envelopes if envelope.mail_id is not None]
        self.bytes += changes.bytes + sum(envelope.stored_bytes for envelope in envelopes)


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
        self.local: LocalWorker | None = None
        self._notifier = notifier
        self._poll_interval = timedelta(seconds=poll_interval_seconds)
        self._last_look: datetime | None = None
        self._inbox: deque[Envelope] = deque()
        self._expansions: deque[Envelope] = deque()
        self._held_timers: list[Envelope] = []
        self._to_load: set[JobId] = set()
        self._strikes: Counter[JobId] = Counter()
        self._too_large: dict[JobId, str] = {}  # jobs that were in a batch which could not be written, and why
        self._mail_waits = True
        self._mail_is_cut = False
        self._last_beat: datetime | None = None
        self._tries_since: float | None = None
        self._cycled_at: float | None = None
        self._reached_since = self._reached_at = monotonic()
        self._wake = asyncio.Event()

    # What others in this process may ask of it.

    def look(self) -> None:
        """Mail may have arrived."""
        self._mail_waits = True
        self._wake.set()

    def adopt(self, job_ids: Iterable[JobId]) -> None:
        """These jobs are owned by this instance now."""
        self._to_load.update(job_ids)
        self._wake.set()

    def deliver(self, report: TaskReport) -> bool:
        """Take a local worker's report, if the job is in this memory. What is large goes by mail, and stays there."""
        if self.local is None or report.job_id not in self.jobs or len(report.output or b"") > self.rules.inline_bytes:
            return False
        self._inbox.append(Envelope(report.job_id, report.message(self.local.worker_id, self.clock.now())))
        self._wake.set()
        return True

    def beaten(self, at: datetime) -> float:
        """Note a heartbeat; how many seconds after the last one."""
        last, self._last_beat = self._last_beat, at
        return (at - last).total_seconds() if last is not None else 0.0

    @property
    def seconds_without_progress(self) -> float:
        """For how long it has tried to do what there is to do, and has not got through a single cycle.

        Time in which the database was out of reach does not count: then nobody else could do better.
        """
        if self._tries_since is None:
            return 0.0
        return max(monotonic() - max(self._tries_since, self._reached_since), 0.0)

    @property
    def seconds_since_cycle(self) -> float:
        """Since its loop last came round. Neither time without the database counts, nor time in which the whole
        process was stopped: then there was no heartbeat either.
        """
        if self._cycled_at is None:
            return 0.0
        return max(monotonic() - max(self._cycled_at, self._reached_since), 0.0)

    def reach_database(self, patience_seconds: float) -> None:
        """The heartbeat has its connection; for longer than this it was never without."""
        now = monotonic()
        if now - self._reached_at > patience_seconds:
            self._reached_since = now
        self._reached_at = now

    def summary(self) -> dict[str, Any]:
        """What other instances and people may know of this one."""
        return {
            **asdict(self.stats),
            "current_cycle_id": self.stats.cycles,
            "no_progress_seconds": round(self.seconds_without_progress, 1),
            **self.memory.summary(),
        }

    def open_queue(self, queue: str) -> None:
        """There is room in it again: jobs that hold tasks for it back may let them go."""
        self.closed_queues.discard(queue)
        self._inbox.extend(
            Envelope(job_id, QueueOpened(queue))
            for job_id in self.jobs
            if (job := self.jobs.get(job_id)) is not None and queue in job.state.backlog
        )
        self._wake.set()

    def forget_all(self) -> None:
        """Memory may be out of date: what is still owned is read again."""
        self._to_load.update(self.jobs)
        for job_id in list(self.jobs):
            self.jobs.drop(job_id)
        self._wake.set()

    async def give_away(self, conn: Connection) -> None:
        """At the end: what was not taken in any more is found in the mailbox by whoever owns the jobs next."""
        await self._forward(conn, self._inbox)
        self._inbox.clear()

    # The loop.

    async def run(self, conn: Connection, stop: asyncio.Event) -> None:
        """Until `stop`, or until the connection is lost."""
        while not stop.is_set():
            if not await self.cycle(conn):
                await self._rest()
            else:
                await asyncio.sleep(0)

    def interrupt(self) -> None:
        self._wake.set()

    async def _rest(self) -> None:
        """Sleep until something arrives, a timer runs out, or it is time to look by oneself."""
        now = self.clock.now()
        until = (self._last_look or now) + self._poll_interval
        if (at := self.jobs.next_wake()) is not None:
            until = min(until, at)
        with suppress(TimeoutError):
            # Not wait_for: before Python 3.12 it may swallow a cancellation.
            async with asyncio.timeout(max((until - now).total_seconds(), 0.001)):
                await self._wake.wait()

    async def cycle(self, conn: Connection) -> bool:
        """One batch; False when there was nothing to do."""
        self._wake.clear()
        self.stats.cycles += 1
        self.stats.last_cycle_at = now = self.clock.now()
        self._cycled_at = monotonic()
        self.memory.begin_cycle(now)
        if self._tries_since is None:
            self._tries_since = monotonic()
        reports, rest = self._collect(now)
        envelopes = [*reports, *rest]
        left = by_job(envelopes)
        try:
            # What was reported comes before what has run out: a result in the mailbox is no timeout. And the checkpoint
            # of a local task, or what it added, was mailed before the task ended.
            mail = await self._read_mail(conn, now)
            if not mail.is_all:
                rest = await self._hold_timers(conn, mail, rest)
                self._inbox.extendleft(reversed(reports))
                reports = []
            envelopes = [*from_mail(mail), *reports, *rest]
            self.memory.enter(Phase.EVALUATING_JOBS)
            left = by_job(envelopes)
            rows = {envelope.job_id: envelope.job for envelope in envelopes if envelope.job is not None}
            fresh = await self._load(conn, [job_id for job_id in left if job_id not in self.jobs], rows)
            await self._advance(conn, left, fresh)
        except BaseException:
            self._rewind(envelope for envelopes in left.values() for envelope in envelopes)
            raise
        finally:
            self.memory.end_cycle(had_work=bool(envelopes))
        self._tries_since = None
        return bool(envelopes)

    def _collect(self, now: datetime) -> tuple[list[Envelope], list[Envelope]]:
        """What this memory itself has to say: reports of the local worker, and the rest."""
        reports = [self._inbox.popleft() for _ in range(min(len(self._inbox), MAX_ENVELOPES))]
        rest = self._held_timers + [Envelope(job_id, timer) for job_id, timer in self.jobs.due(now)]
        self._held_timers = []
        self._mail_waits = self._mail_waits or bool(rest)
        rest += [self._expansions.popleft() for _ in range(min(len(self._expansions), MAX_EXPANSIONS))]
        rest += [Envelope(job_id, Load()) for job_id in self._to_load]
        self._to_load.clear()
        return reports, rest

    async def _read_mail(self, conn: Connection, now: datetime) -> Arrived:
        """What has arrived, when there is a sign of it or the last look was a poll interval ago."""
        if not self._mail_waits and self._last_look is not None and now - self._last_look < self._poll_interval:
            return Arrived()
        self._last_look = now
        self._mail_waits = False
        mail = await read_mail(
            conn,
            self.me.instance_id,
            MAX_MAIL,
            inline_bytes=self.rules.inline_bytes,
            max_bytes=self.rules.max_turn_bytes // MAIL_SHARE,
            window=WIDE_WINDOW if self._mail_is_cut else MAX_MAIL,
        )
        self._mail_is_cut = mail.is_cut
        self._mail_waits = self._mail_waits or not mail.is_all
        return mail

    async def _hold_timers(self, conn: Connection, mail: Arrived, rest: list[Envelope]) -> list[Envelope]:
        """All but the timers of jobs whose mail was not read to its end: what ran out may have been reported there."""
        timed = {envelope.job_id for envelope in rest if isinstance(envelope.message, TimerDue)}
        unread = await jobs_with_mail(conn, timed, mail) if timed else set()
        held = [one for one in rest if one.job_id in unread and isinstance(one.message, TimerDue)]
        self._held_timers += held
        return [envelope for envelope in rest if envelope not in held] if held else rest

    async def _load(
        self, conn: Connection, job_ids: list[JobId], known: Mapping[JobId, Mapping[str, Any]] = MappingProxyType({})
    ) -> set[JobId]:
        """Read jobs into memory, as far as their rows are not known; those that cannot be read are failed."""
        if not job_ids:
            return set()
        rows = [known[job_id] for job_id in job_ids if job_id in known]
        if unknown := [job_id for job_id in job_ids if job_id not in known]:
            rows += await job_states.job_rows(conn, self.me.instance_id, unknown, self.rules.inline_bytes)
        fetched = await self.definitions.fetch(conn, (row["workflow_hash"] for row in rows))
        graphs, readable = {}, []
        for row in rows:
            try:
                graphs[row["workflow_hash"]] = self.definitions.get(row["workflow_hash"], fetched)
                readable.append(row)
            except Exception as error:  # noqa: BLE001 - it may be wrong in any way, and the other jobs must go on
                await self._poisoned(conn, row["job_id"], f"its definition cannot be read: {error}")
        loaded, unreadable = await job_states.restore_rows(conn, readable, graphs, self.rules.inline_bytes)
        for bad in unreadable:
            reason = f"{type(bad.error).__name__}: {bad.error}"
            await self._poisoned(conn, bad.job_id, f"the job cannot be read: {reason}")
        for job in loaded:
            self.jobs.add(OwnedJob(job.state, job.owner_epoch))
        self.stats.jobs_claimed += len(loaded)
        return {job.state.job_id for job in loaded}

    async def _advance(self, conn: Connection, envelopes: dict[JobId, list[Envelope]], fresh: set[JobId]) -> None:
        """Decide, write, and only then act on what was decided. What is done is taken out of `envelopes`."""
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
        work = self._new_work(envelopes)
        for job_id in job_ids:
            if await self._is_given_up(conn, job_id):
                del envelopes[job_id]
                continue
            is_suspect = job_id in self._too_large
            if work.batch.change_sets and (is_suspect or work.bytes >= self.rules.max_turn_bytes):
                await self._write(conn, work)
                work = self._new_work(envelopes)
            job = self.jobs.get(job_id)
            if job is None:  # Forgotten while others were written.
                self._rewind(envelopes.pop(job_id))
                continue
            changes = await self._decide(conn, job, envelopes, is_new=job_id in fresh)
            if changes is None:
                continue
            work.add(changes, job.epoch, envelopes[job_id])
            if is_suspect:
                await self._write(conn, work)
                work = self._new_work(envelopes)
        if work.batch.change_sets:
            await self._write(conn, work)

    def _new_work(self, envelopes: dict[JobId, list[Envelope]]) -> _Work:
        return _Work(Batch(self.me.instance_id, self.local.worker_id if self.local else None), envelopes)

    async def _decide(
        self, conn: Connection, job: OwnedJob, envelopes: dict[JobId, list[Envelope]], *, is_new: bool
    ) -> ChangeSet | None:
        """None when the job cannot be processed. The values it needs are read for this change set only. The decision
        bears the time at which it is made: the cycle may have waited for its mail.
        """
        state, job_id = job.state, job.state.job_id
        told = messages(envelopes[job_id], is_new=is_new, cancel_first=job_id in self._too_large)
        self.memory.processing_job_id = job_id
        try:
            wanted = values_needed(state, told, self.rules)
            loaded = await job_states.load_values(conn, job_id, wanted) if wanted else None
            return decide(state, told, self.clock.now(), self.rules, loaded, self.closed_queues)
        except LOST as error:
            if not is_too_large(error):
                raise
            self._rewind(envelopes.pop(job_id))
            await self._suspect(conn, [job_id], error)
        except Exception as error:  # One bad job never stops another, whatever is wrong with it.
            log.exception("job %s cannot be processed", job_id, extra={"job_id": job_id})
            await self._strike(conn, job_id, envelopes.pop(job_id), error)
        return None

    async def _forward(self, conn: Connection, strays: Iterable[Envelope]) -> None:
        """Reports of a local worker for jobs that another orchestrator has taken over: it is told by mail."""
        reports = ((envelope.job_id, envelope.unmailed_report) for envelope in strays)
        mail = [mail_codec.encode(job_id, report) for job_id, report in reports if report is not None]
        if mail:
            await add_mail(conn, mail)
            self._notifier.notify(MAIL)

    async def _write(self, conn: Connection, work: _Work) -> None:
        self.memory.enter(Phase.DISPATCHING)
        spans = tracing.begin_dispatches(changes for changes, _ in work.batch.change_sets)
        self._assign_local(work)
        for changes, _ in work.batch.change_sets:
            work.queues |= queues_called(changes, work.batch.local)
        work.batch.calls_workers = bool(work.queues) and self._notifier.can_piggyback()
        try:
            await commit(conn, work.batch)
        except BaseException as error:  # noqa: BLE001 - whatever it was, memory is no longer what the rows are
            tracing.end_dispatches(spans, error)
            if self.local is not None:
                self.local.release(work.local)
            await self._undo(conn, work, error)
            return
        tracing.end_dispatches(spans)
        for changes, _ in work.batch.change_sets:
            del work.envelopes[changes.job.job_id]
        settle_versions(work.batch)
        self.memory.record(changes for changes, _ in work.batch.change_sets)
        self._act(work)
        await self._call(conn, work)

    def _assign_local(self, work: _Work) -> None:
        """Tasks for which this process has a free slot are claimed in the transaction that dispatches them."""
        if self.local is None:
            return
        tasks = [
            (changes, dispatch) for changes, _ in work.batch.change_sets for dispatch in changes.dispatches.values()
        ]
        tasks.sort(key=lambda task: (-task[0].job.priority, task[0].job.started_at))
        for changes, dispatch in tasks:
            # A later attempt is claimed like any other task: with what the earlier ones saved, which is not known here.
            if changes.job.is_paused or dispatch.node.params is None or dispatch.attempt > 0:
                continue
            if not self.local.reserve(dispatch.node.task_queue, dispatch.node.task.handler):
                continue
            work.local.append(task_of(changes, dispatch))
            work.batch.local.add(dispatch.task_id)
            claim_here(changes, dispatch, self.local.worker_id)

    def _act(self, work: _Work) -> None:
        """The batch is durable: arm timers, start local tasks, wake the workers, forget what has ended."""
        for changes, _ in work.batch.change_sets:
            job_id = changes.job.job_id
            self._strikes.pop(job_id, None)
            self._too_large.pop(job_id, None)
            self.stats.results_processed += len(changes.results)
            self.stats.tasks_dispatched += len(changes.dispatches)
            if changes.is_over:
                self.jobs.drop(job_id)
                self.stats.jobs_ended += 1
                tracing.trace_ended(changes.job)
                continue
            if job_id in self.jobs:  # Otherwise it was forgotten meanwhile, and will be read anew.
                self.jobs.arm(job_id, changes.timers)
            self._expansions.extend(Envelope(job_id, message) for message in changes.follow_ups)
        if self.local is not None:
            for message in work.local:
                self.local.start(message)
            if work.queues:
                self.local.expect_more(work.queues)
        if work.queues and not work.batch.calls_workers:
            self._notifier.notify(TASKS)

    async def _call(self, conn: Connection, work: _Work) -> None:
        """Submit the jobs that nodes have called, and wake the owners of those that were called off."""
        change_sets = [changes for changes, _ in work.batch.change_sets]
        if any(changes.calls for changes in change_sets):
            self._inbox.extend(
                await start_children(conn, change_sets, self.definitions, self.me.instance_id, self.clock.now())
            )
            self.look()
        if any(changes.cancelled_children for changes in change_sets):
            self._notifier.notify(MAIL)
            self.look()

    # When something goes wrong.

    async def _undo(self, conn: Connection, work: _Work, error: BaseException) -> None:
        """Nothing was written, or it is not known: memory is worth nothing, the database is read again."""
        change_sets = work.batch.change_sets
        for changes, _ in change_sets:
            self.jobs.drop(changes.job.job_id)
        self._mail_waits = True
        if is_too_large(error):
            job_ids = [changes.job.job_id for changes, _ in change_sets]
            self._rewind(envelope for job_id in job_ids for envelope in work.envelopes.pop(job_id))
            await self._suspect(conn, job_ids, error)
            return
        match error:
            case OwnershipLost():
                log.warning("%d jobs were taken over by another orchestrator", len(error.job_ids))
                # All of them: what it lost may have come back to it, under a new epoch.
                self._rewind(
                    envelope for changes, _ in change_sets for envelope in work.envelopes.pop(changes.job.job_id)
                )
            case psycopg.Error() | DagmasterError() if not may_pass(error) and len(change_sets) > 1:
                log.warning("a batch of %d jobs failed, retrying each job alone: %s", len(change_sets), error)
                for changes, _ in change_sets:
                    await self._alone(conn, changes.job.job_id, work.envelopes.pop(changes.job.job_id))
            case psycopg.Error() | DagmasterError() if not may_pass(error):
                job_id = change_sets[0][0].job.job_id
                await self._strike(conn, job_id, work.envelopes.pop(job_id), error)
            case _:
                raise error

    async def _alone(self, conn: Connection, job_id: JobId, envelopes: list[Envelope]) -> None:
        with about(job_id=job_id):
            fresh = await self._load(conn, [job_id])
            await self._advance(conn, {job_id: envelopes}, fresh)

    async def _suspect(self, conn: Connection, job_ids: Sequence[JobId], error: BaseException) -> None:
        """The batch is too large: next time each of its jobs is written alone. One that is too large alone has failed.

        The connection may be lost by it; what is known of the jobs is kept over that.
        """
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        log.warning("a batch of %d jobs is too large, writing each job alone: %s", len(job_ids), reason)
        self.stats.errors += 1
        self.stats.last_error = storable(f"a batch of {len(job_ids)} jobs is too large: {reason}")
        for job_id in job_ids:
            self.jobs.drop(job_id)
            self._too_large[job_id] = reason
        if len(job_ids) == 1:
            self._strikes[job_ids[0]] += 1
        if conn.closed or conn.broken:
            raise error

    async def _is_given_up(self, conn: Connection, job_id: JobId) -> bool:
        """It was too large for the database, each time, alone."""
        if job_id not in self._too_large or self._strikes[job_id] < MAX_STRIKES:
            return False
        reason = self._too_large.pop(job_id)
        self.jobs.drop(job_id)
        await self._poisoned(
            conn,
            job_id,
            f"the job is too large to be written: {reason}; let its tasks return references to data, not the data",
        )
        return True

    async def _strike(self, conn: Connection, job_id: JobId, envelopes: list[Envelope], error: BaseException) -> None:
        """Read it anew and try again; give the job up when that does not help."""
        self.jobs.drop(job_id)
        self._strikes[job_id] += 1
        self.stats.errors += 1
        self.stats.last_error = storable(f"job {job_id}: {error}")
        if self._strikes[job_id] >= MAX_STRIKES:
            await self._poisoned(conn, job_id, f"the job cannot be processed: {type(error).__name__}: {error}")
            return
        await poisoned_jobs.note_error(conn, job_id, f"{type(error).__name__}: {error}", strike=self._strikes[job_id])
        self._rewind(envelopes)

    async def _poisoned(self, conn: Connection, job_id: JobId, error: str) -> None:
        log.error("failing job %s: %s", job_id, error, extra={"job_id": job_id})
        self._strikes.pop(job_id, None)
        if await poisoned_jobs.fail_poisoned(conn, self.me.instance_id, job_id, error):
            self.memory.gave_up(job_id, error)

    def _rewind(self, envelopes: Iterable[Envelope]) -> None:
        """These were not taken in: their jobs are read anew, and what exists nowhere else is kept for them."""
        for envelope in envelopes:
            self.jobs.drop(envelope.job_id)
            self._to_load.add(envelope.job_id)
            if envelope.unmailed_report is not None:
                self._inbox.append(envelope)
        self._mail_waits = True
