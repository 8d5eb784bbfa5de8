"""Buffer the progress, checkpoints and added nodes that handlers report while they run."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial

from dagmaster.errors import TaskOver
from dagmaster.handlers.contract import Checkpoint, Progress
from dagmaster.handlers.futures import in_loop
from dagmaster.handlers.invocation import encode_output
from dagmaster.ids import TaskId
from dagmaster.model.sealed import Mask
from dagmaster.queues.contract import SavedCheckpoint


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
