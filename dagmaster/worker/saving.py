"""Store checkpoints as soon as they are made, one after the other, until they are stored or refused."""

import logging
from collections.abc import Callable, Collection

from dagmaster.errors import TaskOver
from dagmaster.queues.contract import Link
from dagmaster.worker.telling import Teller, Unsaved

log = logging.getLogger(__name__)


class Saver:
    """`withdraw` is told of tasks that are no longer the worker's, `saved` of each checkpoint that is stored."""

    def __init__(
        self,
        teller: Teller,
        lost: tuple[type[Exception], ...],
        withdraw: Callable[[Collection[str]], None],
        saved: Callable[[], None] | None,
    ) -> None:
        self._teller, self._lost = teller, lost
        self._withdraw, self._saved = withdraw, saved

    async def run(self, link: Link) -> None:
        """Until cancelled, or until the connection is lost."""
        while True:
            await self._teller.has_unsaved.wait()
            await self.save_all(link)

    async def save_all(self, link: Link) -> None:
        while (unsaved := self._teller.first_unsaved()) is not None:
            await self._save(link, unsaved)

    async def _save(self, link: Link, unsaved: Unsaved) -> None:
        try:
            await link.save(unsaved.task_id, unsaved.checkpoint)
        except self._lost:
            raise
        except TaskOver as over:
            self._withdraw([unsaved.task_id])
            self._teller.settle(unsaved, over)
        except Exception as error:  # The handler is told; the checkpoints of the others must be saved.
            log.exception("the checkpoint %s of task %s was refused", unsaved.checkpoint.phase, unsaved.task_id)
            self._teller.settle(unsaved, error)
        else:
            if self._saved is not None:
                self._saved()
            self._teller.settle(unsaved)
