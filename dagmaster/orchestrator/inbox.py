"""The messages for an orchestrator's next cycle: mail, reports of the local worker, timers and follow-ups."""

import asyncio
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime, timedelta

from dagmaster.engine.change_set import Rules
from dagmaster.engine.messages import Load, TimerDue
from dagmaster.ids import JobId
from dagmaster.orchestrator.envelopes import Envelope
from dagmaster.orchestrator.owned_jobs import OwnedJobs
from dagmaster.store.connect import Connection
from dagmaster.store.mailbox import Arrived, Mail, jobs_with_mail, read_mail

MAX_MAIL = 2000
# While large mail waits, small mail of other jobs is searched in a wider window, and a cycle reads less.
WIDE_WINDOW = 10 * MAX_MAIL
MAIL_SHARE = 4
MAX_ENVELOPES = 4000
MAX_EXPANSIONS = 4
MAX_DELIVERED = 100


class Inbox:
    def __init__(self, instance_id: str, jobs: OwnedJobs, rules: Rules, poll_interval: timedelta) -> None:
        self._instance_id = instance_id
        self._jobs = jobs
        self._rules = rules
        self._poll_interval = poll_interval
        self._envelopes: deque[Envelope] = deque()
        self._expansions: deque[Envelope] = deque()
        self._held_timers: list[Envelope] = []
        self._to_load: set[JobId] = set()
        self._mail_waits = True
        self._mail_is_cut = False
        self._delivered: dict[int, Mail] = {}
        self._read_ids: set[int] = set()
        self._last_look: datetime | None = None
        self._wake = asyncio.Event()

    def check_mail(self) -> None:
        """Read the mailbox in the next cycle: mail may have arrived."""
        self._mail_waits = True
        self._wake.set()

    def deliver(self, mail: Mail) -> None:
        """Take mail from a notification. If it is not taken, nothing is lost: its row is in the mailbox."""
        is_mine = mail.job_id in self._jobs if mail.job is None else mail.job["owner_id"] == self._instance_id
        if mail.job is not None and not is_mine:
            return
        if not is_mine or mail.message is None or len(self._delivered) >= MAX_DELIVERED:
            self.check_mail()
            return
        self._delivered[mail.mail_id] = mail
        self._wake.set()

    def load(self, job_ids: Iterable[JobId]) -> None:
        """Load these jobs in the next cycle."""
        self._to_load.update(job_ids)
        self._wake.set()

    def extend(self, envelopes: Iterable[Envelope]) -> None:
        self._envelopes.extend(envelopes)
        self._wake.set()

    def follow_up(self, envelopes: Iterable[Envelope]) -> None:
        """Add the rest of large expansions, a few of which are processed per cycle."""
        self._expansions.extend(envelopes)

    def put_back(self, reports: Iterable[Envelope]) -> None:
        """Return reports that the next cycle must process first."""
        self._envelopes.extendleft(reversed(list(reports)))

    def rewind(self, envelopes: Iterable[Envelope]) -> None:
        """Reload the jobs of messages that were not processed. Messages that exist nowhere else are kept."""
        for envelope in envelopes:
            self._jobs.drop(envelope.job_id)
            self._to_load.add(envelope.job_id)
            if envelope.unmailed_report is not None:
                self._envelopes.append(envelope)
        self._mail_waits = True

    def clear(self) -> list[Envelope]:
        """Empty the inbox; returns its messages, some of which exist nowhere else."""
        envelopes = list(self._envelopes)
        self._envelopes.clear()
        return envelopes

    def interrupt(self) -> None:
        self._wake.set()

    def begin_cycle(self) -> None:
        """From here on, whatever arrives wakes the next cycle."""
        self._wake.clear()

    async def wait(self, now: datetime) -> None:
        """Sleep until something arrives, a timer is due or the mailbox is polled."""
        until = (self._last_look or now) + self._poll_interval
        if (at := self._jobs.next_wake()) is not None:
            until = min(until, at)
        with suppress(TimeoutError):
            # Not wait_for: before Python 3.12 it may swallow a cancellation.
            async with asyncio.timeout(max((until - now).total_seconds(), 0.001)):
                await self._wake.wait()

    def collect(self, now: datetime) -> tuple[list[Envelope], list[Envelope]]:
        """The messages that need no database: reports of the local worker, and the others."""
        reports = [self._envelopes.popleft() for _ in range(min(len(self._envelopes), MAX_ENVELOPES))]
        others = self._held_timers + [Envelope(job_id, timer) for job_id, timer in self._jobs.due(now)]
        self._held_timers = []
        self._mail_waits = self._mail_waits or bool(others)
        others += [self._expansions.popleft() for _ in range(min(len(self._expansions), MAX_EXPANSIONS))]
        others += [Envelope(job_id, Load()) for job_id in self._to_load]
        self._to_load.clear()
        return reports, others

    async def read_mail(self, conn: Connection, now: datetime) -> Arrived:
        """Read the mailbox if mail may have arrived or a poll interval has passed; else take the delivered mail."""
        delivered, self._delivered = self._delivered, {}
        if not self._mail_waits and self._last_look is not None and now - self._last_look < self._poll_interval:
            return Arrived(mail for mail in delivered.values() if mail.mail_id not in self._read_ids)
        self._last_look = now
        self._mail_waits = False
        mail = await read_mail(
            conn,
            self._instance_id,
            MAX_MAIL,
            inline_bytes=self._rules.inline_bytes,
            max_bytes=self._rules.max_change_set_bytes // MAIL_SHARE,
            window=WIDE_WINDOW if self._mail_is_cut else None,
        )
        self._read_ids = {row.mail_id for row in mail}
        self._mail_is_cut = mail.is_cut
        self._mail_waits = self._mail_waits or not mail.is_all
        return mail

    async def hold_timers(self, conn: Connection, mail: Arrived, envelopes: list[Envelope]) -> list[Envelope]:
        """Delay the timers of jobs with unread mail: it may hold the report that the timer waits for."""
        timed = {envelope.job_id for envelope in envelopes if isinstance(envelope.message, TimerDue)}
        unread = await jobs_with_mail(conn, timed, mail) if timed else set()
        timers = [
            envelope for envelope in envelopes if envelope.job_id in unread and isinstance(envelope.message, TimerDue)
        ]
        self._held_timers += timers
        return [envelope for envelope in envelopes if envelope not in timers] if timers else envelopes
