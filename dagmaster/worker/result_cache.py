"""Results that stand for other tasks. They spare work and are never needed: without them a task is just done."""

import asyncio
import logging
from collections.abc import Callable

from dagmaster.engine.results import find_named
from dagmaster.ids import TaskId
from dagmaster.model.cache_policy import Caching
from dagmaster.queues.contract import Link, Recalled

log = logging.getLogger(__name__)

# A task that could be done meanwhile does not wait longer.
WAIT_SECONDS = 5.0


class ResultCache:
    """`link` gives the worker's connection; None while there is none."""

    def __init__(self, link: Callable[[], Link | None]) -> None:
        self._link = link
        self._is_told = False

    async def recall(self, task_id: TaskId, caching: Caching) -> Recalled | None:
        link = self._link()
        if link is None:
            return None
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                found = await link.recall(task_id, caching.version)
        except Exception as error:  # noqa: BLE001 - then it is done once more
            self._tell(f"cannot look up cached results: {error!r}")
            return None
        self._is_told = False
        return found

    async def remember(self, task_id: TaskId, caching: Caching, output: bytes) -> None:
        """What names another node is no result of its own."""
        link = self._link()
        if link is None or find_named(output) is not None:
            return
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await link.remember(task_id, caching.version, output, caching.seconds)
        except Exception as error:  # noqa: BLE001 - what was done must not be lost for it
            self._tell(f"cannot cache the result of task {task_id}: {error!r}")

    def _tell(self, trouble: str) -> None:
        """Once, until it goes well again."""
        log.log(logging.DEBUG if self._is_told else logging.WARNING, "%s", trouble)
        self._is_told = True
