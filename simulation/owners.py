"""Owners of the job: each has it only in memory, decides with the real engine, and may die between any two steps."""

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime

from dagmaster.engine.change_set import ChangeSet
from dagmaster.engine.decide import claim_here, decide
from dagmaster.engine.messages import Continue, Expand, Load, Message, QueueOpened, Report, TaskCompleted, TimerDue
from dagmaster.engine.needs import values_needed
from dagmaster.engine.state import JobState
from dagmaster.engine.values import StoredValue, size_of
from dagmaster.model.added_nodes import RESULT_OF
from simulation.compare import check_stall, difference
from simulation.ground import Fault, Ground, Violation
from simulation.store import OwnershipLost, RowsDiffer, settle_versions
from simulation.workers import Worker

COMPARED = 0.25
CLAIMED_HERE = 0.5


@dataclass(frozen=True, slots=True)
class Decided:
    """A change set that is not written yet. `reports` exist only in this owner's memory."""

    changes: ChangeSet
    epoch: int
    mail: list[int]
    reports: list[Message]
    step: int


class Owner:
    """`local` is the worker in its process, which dies with it."""

    def __init__(self, ground: Ground, name: str, *, has_worker: bool) -> None:
        self.name = name
        self.local = Worker(f"{name}-local") if has_worker else None
        self.state: JobState | None = None
        self.epoch = 0
        self.decided: Decided | None = None
        self._ground = ground
        self._timers: list[tuple[datetime, int, TimerDue]] = []
        self._armed = 0
        self._expansions: list[Expand | Continue] = []
        self._inbox: list[Message] = []
        if self.local is not None:
            ground.store.active_workers.add(self.local.name)

    @property
    def owns(self) -> bool:
        return self._ground.store.job.owner_id == self.name

    def next_timer(self) -> datetime | None:
        return self._timers[0][0] if self.state is not None and self._timers else None

    def deliver(self, message: Message) -> bool:
        """Take a report of the local worker, if the job is in memory and the output is small."""
        if self.state is None or self._is_large(message):
            return False
        self._inbox.append(message)
        return True

    def _is_large(self, message: Message) -> bool:
        """A mere reference to another node never is."""
        if not isinstance(message, TaskCompleted) or not isinstance(message.output, bytes):
            return False
        return len(message.output) > self._ground.rules.inline_bytes and RESULT_OF.encode() not in message.output

    def open_queue(self, queue: str) -> None:
        """Release the nodes that wait for the queue, if the job is in memory."""
        if self.state is not None and queue in self.state.backlog:
            self._inbox.append(QueueOpened(queue))

    # One cycle: collect, decide, write, and only then act.

    def decide(self) -> bool:
        """False if there is nothing to do."""
        if self.decided is not None:
            return False
        if self.state is None and not self.owns:
            return self._forward()
        messages: list[Message] = []
        if self.state is None:
            self._load()
            messages.append(Load())
        mail = list(self._some_mail()) if self.owns else []
        messages += [message for _, message in mail if not isinstance(message, Load)]
        # Nodes that a local task has added were mailed before the task ended, and must be processed first.
        is_all = not self.owns or len(mail) == len(self._ground.store.mailbox)
        early: list[Message] = [] if is_all else [message for message in self._inbox if isinstance(message, Report)]
        reports, self._inbox = [message for message in self._inbox if message not in early], early
        messages += [*reports, *self._some_expansions(), *self._due()]
        if not messages and not mail:
            return False
        self._ground.note(f"{self.name} decides on {', '.join(map(_brief, messages)) or 'nothing'}")
        assert self.state is not None
        node_ids = values_needed(self.state, messages, self._ground.rules)
        loaded = self._ground.store.load_values(node_ids)
        changes = decide(self.state, messages, self._ground.now, self._ground.rules, loaded, self._ground.closed_queues)
        reports = [message for message in reports if isinstance(message, Report)]
        self.decided = Decided(changes, self.epoch, [mail_id for mail_id, _ in mail], reports, self._ground.step)
        return True

    def _forward(self) -> bool:
        """Mail the local worker's reports if another owner has the job."""
        reports, self._inbox = [message for message in self._inbox if isinstance(message, Report)], []
        for report in reports:
            self._ground.store.add_mail(report)
            self._ground.note(f"{self.name} forwards {_brief(report)}")
        return bool(reports)

    def _load(self) -> None:
        store = self._ground.store
        self.state, self.epoch = store.load(self._ground.rng), store.job.owner_epoch
        self._timers = []

    def _some_mail(self) -> Iterator[tuple[int, Message]]:
        """In order of arrival, as far as one read goes."""
        for mail_id, message in self._ground.store.mailbox.items():
            if isinstance(message, TaskCompleted) and self._is_large(message):
                message = replace(message, output=StoredValue(size_of(message.output), mail_id=mail_id))
            yield mail_id, message
            if not self._ground.is_calm and self._ground.rng.random() < 0.3:
                return

    def _some_expansions(self) -> list[Message]:
        """One at a time, so that other jobs get their turn."""
        busy = not self._ground.is_calm and self._ground.rng.random() < 0.4
        return [self._expansions.pop(0)] if self._expansions and not busy else []

    def _due(self) -> list[TimerDue]:
        """In any order: several may be due at once, or late."""
        due = []
        while self._timers and self._timers[0][0] <= self._ground.now:
            due.append(heapq.heappop(self._timers)[2])
        self._ground.rng.shuffle(due)
        return due

    def commit(self) -> bool:
        """Write the change set; False if there was none."""
        decided, self.decided = self.decided, None
        if decided is None:
            return False
        if self._ground.strikes(Fault.COMMIT_FAILS):
            self._ground.note(f"{self.name} cannot write and drops its memory")
            self.forget(decided.reports)
            return True
        local = self._claim_here(decided.changes)
        if self._write(decided, local):
            self._act(decided, local)
        return True

    def _claim_here(self, changes: ChangeSet) -> dict[str, str]:
        """The tasks that the local worker claims in the transaction that dispatches them."""
        claimed: dict[str, str] = {}
        for dispatch in () if changes.job.is_paused else changes.dispatches.values():
            if self.local is None or dispatch.node.params is None or self._ground.rng.random() >= CLAIMED_HERE:
                continue
            claim_here(changes, dispatch, self.local.name)
            claimed[dispatch.task_id] = self.local.name
        return claimed

    def _write(self, decided: Decided, local: dict[str, str]) -> bool:
        try:
            self._ground.store.commit(decided.changes, self.name, decided.epoch, decided.mail, local)
        except OwnershipLost:
            self._ground.note(f"{self.name} is fenced off: it no longer owns the job")
            self.forget(decided.reports)
            return False
        except RowsDiffer as error:
            raise Violation(f"a write by the job's owner was rejected: {error}") from error
        self._ground.note(f"{self.name} writes {_moves(decided.changes)}")
        self._ground.decided_at = decided.step
        self._ground.postponed = frozenset(decided.changes.job.postponed)
        return True

    def _act(self, decided: Decided, local: dict[str, str]) -> None:
        if self._ground.strikes(Fault.COMMIT_UNKNOWN):
            self._ground.note(f"{self.name} does not learn that it was written and drops its memory")
            self.forget(decided.reports)
            return
        changes = decided.changes
        settle_versions(changes)
        for timer in changes.timers:
            self._armed += 1
            due = TimerDue(timer.kind, timer.node_id, timer.attempt)
            heapq.heappush(self._timers, (timer.at, self._armed, due))
        self._expansions += [message for message in changes.follow_ups if isinstance(message, Expand | Continue)]
        for call in changes.new_child_jobs.values():
            self._ground.store.call(call)
        if self.local is not None:
            for task_id in local:
                self.local.hold(self._ground.store.running[task_id])
                if self._ground.strikes(Fault.HANG):
                    self.local.hung.add(task_id)
        self._compare()
        if changes.is_over:
            self.state = None

    def _compare(self) -> None:
        """Another owner would load exactly what this one has in memory."""
        if self.state is None or self._ground.store.is_over or self._ground.rng.random() >= COMPARED:
            return
        if fault := difference(self.state, self._ground.store.load(self._ground.rng)):
            raise Violation(f"memory and rows differ: {fault}")
        check_stall(self._ground, self.state)

    def forget(self, keep: Iterable[Message] = ()) -> None:
        """Drop the memory; keep what exists only here and may still count."""
        self.state = None
        self._timers = []
        self._inbox = [*keep, *self._inbox]


def _brief(message: Message) -> str:
    name = type(message).__name__
    if isinstance(message, TimerDue):
        return f"{name}({message.kind} {message.node_id} {message.attempt})"
    task = getattr(message, "task_id", None) or getattr(message, "node_id", None)
    return f"{name}({task})" if task else name


def _moves(changes: ChangeSet) -> str:
    moves = [f"{event.node_id or 'job'}:{event.event_type.partition('_')[2]}" for event in changes.events]
    return " ".join(moves) or "nothing"
