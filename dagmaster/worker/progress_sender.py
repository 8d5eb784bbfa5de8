"""Pass on what handlers say: checkpoints and added nodes as soon as they are made, progress now and then."""

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
    """`withdraw` is told of tasks that are no longer the worker's, `saved` of each thing that is stored."""

    def __init__(
        self,
        progress_buffer: ProgressBuffer,
        slots: Slots,
        lost: tuple[type[Exception], ...],
        withdraw: Callable[[Collection[TaskId]], None],
        saved: Callable[[], None] | None,
    ) -> None:
        self._progress_buffer, self._slots, self._lost = progress_buffer, slots, lost
        self._withdraw, self._saved = withdraw, saved

    async def tell_progress(self, link: Link, every_seconds: float) -> None:
        """One by one: a statement for several could wait for an owner that waits for it."""
        while True:
            await asyncio.sleep(every_seconds)
            for task_id, progress in self._progress_buffer.take_progress():
                if task_id in self._slots.held:
                    await link.tell(task_id, progress)

    async def tell_last(self, link: Link | None, task_id: TaskId) -> None:
        """How far it was in the end; when nobody can be told, that is no reason to keep the result."""
        last = self._progress_buffer.take_last(task_id)
        if last is not None and link is not None:
            with suppress(*self._lost):
                await link.tell(task_id, last)

    async def save_what_comes(self, link: Link) -> None:
        """Until cancelled, or until the connection is lost."""
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
            self._withdraw([unsaved.task_id])
            self._progress_buffer.settle(unsaved, over)
        except Exception as error:  # The handler is told; the checkpoints of the others must be saved.
            log.exception("%s of task %s was rejected", _what(unsaved), unsaved.task_id)
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


def _what(unsaved: Unsaved) -> str:
    return "what was added" if isinstance(unsaved.content, tuple) else f"the checkpoint {unsaved.content.phase}"
