"""The slots of a worker: running tasks, and handlers that keep running after their task has ended."""

import asyncio
from collections.abc import Callable, Collection
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from dagmaster.ids import TaskId
from dagmaster.queues.contract import TaskMessage


@dataclass(slots=True)
class RunningTask:
    """A task in a slot. `has_ended`: its handler has returned, and its checkpoints are still being stored."""

    message: TaskMessage
    runner: asyncio.Task[None]
    began_at: float
    revoked_at: float | None = None
    has_ended: bool = False


class Slots:
    def __init__(self, count: int, freed: Callable[[], None]) -> None:
        self.count = count
        self.reserved = 0
        self.running: dict[TaskId, RunningTask] = {}
        # Threads and coroutines that ignore their cancellation; nothing can force them to end.
        self.stuck: dict[TaskId, asyncio.Future[Any]] = {}
        self._freed = freed
        self._loop = asyncio.get_running_loop()

    @property
    def free(self) -> int:
        return max(0, self.count - len(self.running) - len(self.stuck) - self.reserved)

    def take(self, message: TaskMessage, runner: asyncio.Task[None]) -> None:
        self.running[message.task_id] = RunningTask(message, runner, self._loop.time())
        runner.add_done_callback(self._release)

    def _release(self, runner: asyncio.Task[None]) -> None:
        """Free the slot, even of a task that was cancelled before its first step."""
        task_id = TaskId(runner.get_name())
        task = self.running.get(task_id)
        if task is not None and task.runner is runner:
            del self.running[task_id]
            self._freed()

    def revoke(self, task_ids: Collection[TaskId]) -> list[TaskId]:
        """Cancel tasks; returns those that were not revoked before."""
        revoked = [
            task_id for task_id in task_ids if task_id in self.running and self.running[task_id].revoked_at is None
        ]
        for task_id in revoked:
            task = self.running[task_id]
            task.revoked_at = self._loop.time()
            task.runner.cancel()
        return revoked

    def was_revoked(self, task_id: TaskId) -> bool:
        """Whether the task was revoked or is no longer running."""
        task = self.running.get(task_id)
        return task is None or task.revoked_at is not None

    def finish(self, task_id: TaskId) -> None:
        """Note that the handler has ended: its timeout no longer applies."""
        if (task := self.running.get(task_id)) is not None:
            task.has_ended = True

    def overdue(self, grace_seconds: float) -> list[RunningTask]:
        """The tasks that keep running after their timeout or revocation."""
        now = self._loop.time()
        return [task for task in self.running.values() if not task.has_ended and now > _end_of(task) + grace_seconds]

    def leave_behind(self, task_id: TaskId, work: Future[Any] | asyncio.Future[Any]) -> None:
        """Keep the slot of an ended task occupied until its handler ends, too."""
        future = asyncio.wrap_future(work) if isinstance(work, Future) else work
        self.running.pop(task_id, None)
        self.stuck[task_id] = future
        future.add_done_callback(lambda ended: self._unstick(task_id, ended))

    def _unstick(self, task_id: TaskId, ended: asyncio.Future[Any]) -> None:
        if not ended.cancelled():
            ended.exception()  # Retrieved, so that asyncio does not complain.
        self.stuck.pop(task_id, None)
        self._freed()


def _end_of(task: RunningTask) -> float:
    end = task.began_at + task.message.timeout_seconds
    return end if task.revoked_at is None else min(end, task.revoked_at)
