"""Send the reports of running handlers: checkpoints and added nodes at once, progress periodically."""

import asyncio
import logging
from collections.abc import Callable, Collection
from contextlib import suppress

from dagmaster.errors import TaskOver
from dagmaster.ids import TaskId
from dagmaster.queues.contract import Link
from dagmaster.worker.progress_buffer import ProgressBuffer, Unsaved
from dagmaster.worker.slots import Slots

log = logging.getLogger(__name__)


class ProgressSender:
    """`revoke` is called for tasks that are no longer the worker's, `saved` after each stored item."""

    def __init__(
        self,
        progress_buffer: ProgressBuffer,
        slots: Slots,
        lost: tuple[type[Exception], ...],
        revoke: Callable[[Collection[TaskId]], None],
        saved: Callable[[], None] | None,
    ) -> None:
        self._progress_buffer, self._slots, self._lost = progress_buffer, slots, lost
        self._revoke, self._saved = revoke, saved

    async def tell_progress(self, link: Link, every_seconds: float) -> None:
        """Send progress one by one: a statement for several tasks could deadlock with an owner."""
        while True:
            await asyncio.sleep(every_seconds)
            for task_id, progress in self._progress_buffer.take_progress():
                if task_id in self._slots.running:
                    await link.tell(task_id, progress)

    async def tell_last(self, link: Link | None, task_id: TaskId) -> None:
        """Send the final progress. Without a connection it is dropped, so as not to delay the result."""
        last = self._progress_buffer.take_last(task_id)
        if last is not None and link is not None:
            with suppress(*self._lost):
                await link.tell(task_id, last)

    async def save_until_cancelled(self, link: Link) -> None:
        """Save items as they come, until cancelled or until the connection is lost."""
        while True:
            await self._progress_buffer.has_unsaved.wait()
            await self.save_all(link)

    async def save_all(self, link: Link) -> None:
        while (unsaved := self._progress_buffer.first_unsaved()) is not None:
            await self._save(link, unsaved)

    async def _save(self, link: Link, unsaved: Unsaved) -> None:
        try:
            await _store(link, unsaved)
        except self._lost:
            raise
        except TaskOver as over:
            self._revoke([unsaved.task_id])
            self._progress_buffer.settle(unsaved, over)
        except Exception as error:  # The handler receives it; the checkpoints of other tasks must be saved.
            log.exception("%s of task %s was rejected", _label(unsaved), unsaved.task_id)
            self._progress_buffer.settle(unsaved, error)
        else:
            if self._saved is not None:
                self._saved()
            self._progress_buffer.settle(unsaved)


async def _store(link: Link, unsaved: Unsaved) -> None:
    if isinstance(unsaved.content, tuple):
        await link.add(unsaved.task_id, unsaved.content)
    else:
        await link.save(unsaved.task_id, unsaved.content)


def _label(unsaved: Unsaved) -> str:
    return "the addition" if isinstance(unsaved.content, tuple) else f"the checkpoint {unsaved.content.phase}"
