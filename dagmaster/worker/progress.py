"""What handlers report while they run: progress is sent periodically, checkpoints and added nodes at once."""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from dagmaster.errors import TaskOver
from dagmaster.handlers.contract import Checkpoint, Progress
from dagmaster.handlers.futures import in_loop
from dagmaster.handlers.invocation import encode_output
from dagmaster.ids import TaskId
from dagmaster.model.sealed import Mask
from dagmaster.queues.contract import Link, SavedCheckpoint
from dagmaster.worker.slots import Slots

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Unsaved:
    """A checkpoint, or slices of added nodes, not stored yet."""

    task_id: TaskId
    content: SavedCheckpoint | tuple[bytes, ...]
    stored: Future[None]


class ProgressBuffer:
    """Thread-safe, and never blocks a handler.

    Only the latest progress of each task is kept, and sent from time to time. Checkpoints and added nodes are kept
    until they are stored.
    """

    def __init__(self, max_bytes: int) -> None:
        self.has_unsaved = asyncio.Event()
        self._max_bytes = max_bytes
        self._latest: dict[TaskId, Progress] = {}
        self._unsaved: deque[Unsaved] = deque()
        # A deque must not grow during iteration, and handlers append from their threads.
        self._lock = threading.Lock()
        self._loop = asyncio.get_running_loop()
        self._masks: dict[TaskId, Mask] = {}

    def mask(self, task_id: TaskId, mask: Mask) -> None:
        """Mask the secrets of this task from now on."""
        self._masks[task_id] = mask

    def unmask(self, task_id: TaskId) -> None:
        self._masks.pop(task_id, None)

    def progress_sink(self, task_id: TaskId) -> Callable[[Progress], None]:
        return partial(self._set_progress, task_id)

    def _set_progress(self, task_id: TaskId, progress: Progress) -> None:
        if (mask := self._masks.get(task_id)) is not None and progress.message:
            progress = replace(progress, message=mask.hide(progress.message))
        self._latest[task_id] = progress

    def checkpoint_sink(self, task_id: TaskId) -> Callable[[Checkpoint], Future[None]]:
        return partial(self._keep, task_id)

    def _keep(self, task_id: TaskId, checkpoint: Checkpoint) -> Future[None]:
        label = f"the data of the checkpoint {checkpoint.phase}"
        data = encode_output(checkpoint.data, self._max_bytes, label)
        artifacts = None
        if checkpoint.artifacts:
            remaining = max(self._max_bytes - len(data), 0)
            label = f"the list of artifacts of the checkpoint {checkpoint.phase}, with its data,"
            artifacts = encode_output([dict(artifact) for artifact in checkpoint.artifacts], remaining, label)
        return self._store(task_id, SavedCheckpoint(checkpoint.phase, data, artifacts))

    def add_sink(self, task_id: TaskId) -> Callable[[Sequence[bytes]], Future[None]]:
        return lambda slices: self._store(task_id, tuple(slices))

    def _store(self, task_id: TaskId, content: SavedCheckpoint | tuple[bytes, ...]) -> Future[None]:
        if (mask := self._masks.get(task_id)) is not None:
            content = _sealed(content, mask)
        unsaved = Unsaved(task_id, content, Future())
        with self._lock:
            self._unsaved.append(unsaved)
        self._loop.call_soon_threadsafe(self.has_unsaved.set)
        return unsaved.stored

    def take_progress(self) -> Iterator[tuple[TaskId, Progress]]:
        """The progress since the last call."""
        for task_id in list(self._latest):
            if (last := self.take_last(task_id)) is not None:
                yield task_id, last

    def take_last(self, task_id: TaskId) -> Progress | None:
        """The last progress of a task, if it was not sent yet."""
        return self._latest.pop(task_id, None)

    def first_unsaved(self) -> Unsaved | None:
        with self._lock:
            if self._unsaved:
                return self._unsaved[0]
            # Under the lock: the next item sets it again.
            self.has_unsaved.clear()
            return None

    def settle(self, unsaved: Unsaved, error: Exception | None = None) -> None:
        """Complete an item: it is stored, or rejected with the error."""
        with self._lock:
            if unsaved not in self._unsaved:
                return  # Forgotten in the meantime.
            self._unsaved.remove(unsaved)
        if error is not None:
            unsaved.stored.set_exception(error)
        else:
            unsaved.stored.set_result(None)

    async def all_saved(self, task_id: TaskId) -> None:
        """Wait until everything that the task saved is stored, which must happen before its result."""
        # Shielded: a cancelled waiter must not cancel the storing.
        if waiting := [asyncio.shield(in_loop(unsaved.stored)) for unsaved in self._of(task_id)]:
            await asyncio.gather(*waiting, return_exceptions=True)

    def forget(self, task_id: TaskId) -> None:
        """Drop everything of a task that is no longer this worker's."""
        self._latest.pop(task_id, None)
        for unsaved in self._of(task_id):
            self.settle(unsaved, TaskOver(f"task {task_id} was revoked"))

    def _of(self, task_id: TaskId) -> list[Unsaved]:
        with self._lock:
            return [unsaved for unsaved in self._unsaved if unsaved.task_id == task_id]


def _sealed(content: SavedCheckpoint | tuple[bytes, ...], mask: Mask) -> SavedCheckpoint | tuple[bytes, ...]:
    if isinstance(content, tuple):
        return tuple(map(mask.seal, content))
    artifacts = mask.seal(content.artifacts) if content.artifacts is not None else None
    return replace(content, phase=mask.hide(content.phase), data=mask.seal(content.data), artifacts=artifacts)


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
        task_id, content = unsaved.task_id, unsaved.content
        try:
            if isinstance(content, tuple):
                await link.add(task_id, content)
            else:
                await link.save(task_id, content)
        except self._lost:
            raise
        except TaskOver as over:
            self._revoke([task_id])
            self._progress_buffer.settle(unsaved, over)
        except Exception as error:  # The handler receives it; the checkpoints of other tasks must be saved.
            label = "the addition" if isinstance(content, tuple) else f"the checkpoint {content.phase}"
            log.exception("%s of task %s was rejected", label, task_id)
            self._progress_buffer.settle(unsaved, error)
        else:
            if self._saved is not None:
                self._saved()
            self._progress_buffer.settle(unsaved)
