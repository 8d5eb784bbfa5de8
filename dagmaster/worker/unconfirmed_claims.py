"""Claims that a worker confirms before it starts their tasks.

A late response may be outdated, for instance because the process was stopped: the job may have been cancelled since,
and none of its tasks may start after that.
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
# A response this much quicker than the limit shows that the latency has dropped.
SHORTER = 4
ANSWERS = 3


class Freshness:
    """How long a response may take: half a second, or twice the quickest of the last few responses, and at most half a
    lease. So a worker with high latency works, only more slowly, and one pause is not mistaken for latency.
    """

    def __init__(self, lease_seconds: float) -> None:
        self._most = max(FRESH_SECONDS, lease_seconds / 2)
        self._took: deque[float] = deque(maxlen=ANSWERS)
        self.limit_seconds = FRESH_SECONDS

    def holds(self, requested_at: float) -> bool:
        """Whether the response to a request of that time may still be acted upon."""
        seconds = monotonic() - requested_at
        if seconds < self.limit_seconds / SHORTER:
            self._took.clear()
            self.limit_seconds = FRESH_SECONDS
        return seconds <= self.limit_seconds

    def learn(self, requested_at: float) -> None:
        """Learn the latency from a request that the server answers at once."""
        self._took.append(monotonic() - requested_at)
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
        """Whether no unconfirmed claim was settled for a while."""
        return bool(self._tasks) and self._since is not None and monotonic() - self._since > SAY_AFTER_SECONDS

    def add(self, task_ids: Iterable[TaskId]) -> None:
        self._tasks.update(task_ids)
        if self._since is None:
            self._since = monotonic()
        self.raised.set()

    def confirm(self, task_id: TaskId) -> None:
        """Note that the task is the worker's and starts."""
        self._tasks.discard(task_id)
        self._since, self._was_said = (monotonic() if self._tasks else None), False

    async def settle(self, link: Link, known: Collection[TaskId]) -> tuple[list[TaskMessage], float]:
        """Request the claims again; returns those that hold, and the time of the request. The others have ended or were
        never made.
        """
        self.raised.clear()
        if not self._tasks:
            self._since = None
            return [], monotonic()
        self._warn()
        task_ids, requested_at = set(self._tasks), monotonic()
        messages = await link.forgotten(known)
        self._freshness.learn(requested_at)
        self._tasks -= task_ids
        return [message for message in messages if message.task_id in task_ids], requested_at

    def _warn(self) -> None:
        if self.last_long and not self._was_said:
            self._was_said = True
            log.warning(
                "%d claimed tasks cannot start: confirming the claims takes longer than %.1f s",
                len(self._tasks),
                self._freshness.limit_seconds,
            )
