"""The cache of results. It only saves work: when it fails, the task is executed."""

import asyncio
import logging
from collections.abc import Callable

from dagmaster.engine.results import find_result_source
from dagmaster.ids import TaskId
from dagmaster.model.cache_policy import Caching
from dagmaster.queues.contract import Link, Recalled

log = logging.getLogger(__name__)

# A task does not wait longer for its cached result.
WAIT_SECONDS = 5.0


class ResultCache:
    """`link` returns the worker's connection; None while it is lost."""

    def __init__(self, link: Callable[[], Link | None]) -> None:
        self._link = link
        self._is_told = False

    async def recall(self, task_id: TaskId, caching: Caching) -> Recalled | None:
        link = self._link()
        if link is None:
            return None
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                cached = await link.recall(task_id, caching.version)
        except Exception as error:  # noqa: BLE001 - the task is executed instead
            self._warn(f"cannot look up cached results: {error!r}")
            return None
        self._is_told = False
        return cached

    async def remember(self, task_id: TaskId, caching: Caching, output: bytes) -> None:
        """Store a result, unless it stands for the result of another node."""
        link = self._link()
        if link is None or find_result_source(output) is not None:
            return
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await link.remember(task_id, caching.version, output, caching.seconds)
        except Exception as error:  # noqa: BLE001 - a result must not be lost for its cache entry
            self._warn(f"cannot cache the result of task {task_id}: {error!r}")

    def _warn(self, trouble: str) -> None:
        """Warn once, until the cache works again."""
        log.log(logging.DEBUG if self._is_told else logging.WARNING, "%s", trouble)
        self._is_told = True
