"""Tasks of which a worker is not sure whether they are its to begin: they are asked for again.

An answer that took long may be out of date, for instance because the process was stopped meanwhile: the job may have
been cancelled since, and nothing may start after that.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from time import monotonic

from dagmaster.ids import TaskId
from dagmaster.queues.contract import Link, TaskMessage

log = logging.getLogger(__name__)

FRESH_SECONDS = 0.5
SAY_AFTER_SECONDS = 10.0
# An answer so much quicker than was allowed shows that the way has become shorter.
SHORTER = 4
ANSWERS = 3


class Freshness:
    """How long an answer may take: half a second, or twice as long as even the quickest of the last few answers took.
    So a worker that is far away works, only more slowly, and one that was stopped once is not taken for far away. It
    never takes more than half a lease.
    """

    def __init__(self, lease_seconds: float) -> None:
        self._most = max(FRESH_SECONDS, lease_seconds / 2)
        self._took: deque[float] = deque(maxlen=ANSWERS)
        self.limit_seconds = FRESH_SECONDS

    def holds(self, asked: float) -> bool:
        """Whether what was asked for at that time may be acted upon now."""
        seconds = monotonic() - asked
        if seconds < self.limit_seconds / SHORTER:
            self._took.clear()
            self.limit_seconds = FRESH_SECONDS
        return seconds <= self.limit_seconds

    def learn(self, asked: float) -> None:
        """From a question that is answered at once: how long it takes is how far it is."""
        self._took.append(monotonic() - asked)
        if len(self._took) == ANSWERS:
            self.limit_seconds = max(FRESH_SECONDS, min(2 * min(self._took), self._most))


class UnconfirmedClaims:
    def __init__(self, freshness: Freshness) -> None:
        self.raised = asyncio.Event()
        self._freshness = freshness
        self._tasks: set[TaskId] = set()
        self._since: float | None = None
        self._was_said = False

    def __len__(self) -> int:
        return len(self._tasks)

    def __iter__(self) -> Iterator[TaskId]:
        return iter(sorted(self._tasks))

    @property
    def last_long(self) -> bool:
        """Whether the worker holds claims and has begun none of them for a while."""
        return bool(self._tasks) and self._since is not None and monotonic() - self._since > SAY_AFTER_SECONDS

    def about(self, task_ids: Iterable[TaskId]) -> None:
        self._tasks.update(task_ids)
        if self._since is None:
            self._since = monotonic()
        self.raised.set()

    def dispel(self, task_id: TaskId) -> None:
        """It is the worker's, and begins."""
        self._tasks.discard(task_id)
        self._since, self._was_said = (monotonic() if self._tasks else None), False

    async def settle(self, link: Link, known: Collection[TaskId]) -> tuple[list[TaskMessage], float]:
        """Those that are the worker's after all, and when that was asked. Of the others nobody knows, or they are
        over.
        """
        self.raised.clear()
        if not self._tasks:
            self._since = None
            return [], monotonic()
        self._complain()
        asked, asked_at = set(self._tasks), monotonic()
        held = await link.forgotten(known)
        self._freshness.learn(asked_at)
        self._tasks -= asked
        return [message for message in held if message.task_id in asked], asked_at

    def _complain(self) -> None:
        if self.last_long and not self._was_said:
            self._was_said = True
            log.warning(
                "%d claimed tasks cannot start: confirming the claims takes longer than %.1f s",
                len(self._tasks),
                self._freshness.limit_seconds,
            )
