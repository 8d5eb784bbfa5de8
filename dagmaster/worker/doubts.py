"""Tasks of which a worker is not sure whether they are its to begin: they are asked for again.

An answer that took long may be out of date, for instance because the process was stopped meanwhile: the job may have
been cancelled since, and nothing may start after that.
"""

import asyncio
from collections.abc import Collection, Iterable
from time import monotonic

from dagmaster.queues.contract import Link, TaskMessage

FRESH_SECONDS = 0.5


def is_stale(asked: float) -> bool:
    """Whether what was asked for at that time must be asked for again."""
    return monotonic() - asked > FRESH_SECONDS


class Doubts:
    def __init__(self) -> None:
        self.raised = asyncio.Event()
        self._tasks: set[str] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def about(self, task_ids: Iterable[str]) -> None:
        self._tasks.update(task_ids)
        self.raised.set()

    def dispel(self, task_id: str) -> None:
        self._tasks.discard(task_id)

    async def settle(self, link: Link, known: Collection[str]) -> tuple[list[TaskMessage], float]:
        """Those that are the worker's after all, and when that was asked. Of the others nobody knows, or they are
        over.
        """
        self.raised.clear()
        if not self._tasks:
            return [], monotonic()
        asked, asked_at = set(self._tasks), monotonic()
        held = await link.forgotten(known)
        self._tasks -= asked
        return [message for message in held if message.task_id in asked], asked_at
