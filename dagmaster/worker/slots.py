"""The places in which a worker runs tasks: which are taken, by what, and by what is left behind."""

import asyncio
from collections.abc import Callable, Collection
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from dagmaster.ids import TaskId
from dagmaster.queues.contract import TaskMessage


@dataclass(slots=True)
class Held:
    """A task at work. `told_at` is when it was told to end; its handler may have ended while what it said is stored."""

    message: TaskMessage
    runner: asyncio.Task[None]
    began_at: float
    told_at: float | None = None
    has_ended: bool = False


class Slots:
    def __init__(self, count: int, freed: Callable[[], None]) -> None:
        self.count = count
        self.reserved = 0
        self.held: dict[TaskId, Held] = {}
        # Threads and coroutines that do not end although they were told to: nothing can make them.
        self.stuck: dict[TaskId, asyncio.Future[Any]] = {}
        self._freed = freed
        self._loop = asyncio.get_running_loop()

    @property
    def free(self) -> int:
        return max(0, self.count - len(self.held) - len(self.stuck) - self.reserved)

    def take(self, message: TaskMessage, runner: asyncio.Task[None]) -> None:
        self.held[message.task_id] = Held(message, runner, self._loop.time())
        runner.add_done_callback(self._release)

    def _release(self, runner: asyncio.Task[None]) -> None:
        """Also of a task that was cancelled before it ran at all."""
        task_id = TaskId(runner.get_name())
        held = self.held.get(task_id)
        if held is not None and held.runner is runner:
            del self.held[task_id]
            self._freed()

    def tell_to_end(self, task_ids: Collection[TaskId]) -> list[TaskId]:
        """Those that were not told before."""
        told = [task_id for task_id in task_ids if task_id in self.held and self.held[task_id].told_at is None]
        for task_id in told:
            held = self.held[task_id]
            held.told_at = self._loop.time()
            held.runner.cancel()
        return told

    def was_told(self, task_id: TaskId) -> bool:
        """Whether it was told to end, or is nobody's any more."""
        held = self.held.get(task_id)
        return held is None or held.told_at is not None

    def finish(self, task_id: TaskId) -> None:
        """Its handler has ended; no time limit holds for what is left to do."""
        if (held := self.held.get(task_id)) is not None:
            held.has_ended = True

    def overdue(self, grace_seconds: float) -> list[Held]:
        """Those that go on although their time is over, or although they were told to end."""
        now = self._loop.time()
        return [one for one in self.held.values() if not one.has_ended and now > _end_of(one) + grace_seconds]

    def leave_behind(self, task_id: TaskId, work: Future[Any] | asyncio.Future[Any]) -> None:
        """The task is over and what ran it goes on: its slot stays taken until it ends."""
        future = asyncio.wrap_future(work) if isinstance(work, Future) else work
        self.held.pop(task_id, None)
        self.stuck[task_id] = future
        future.add_done_callback(lambda ended: self._came_to_rest(task_id, ended))

    def _came_to_rest(self, task_id: TaskId, ended: asyncio.Future[Any]) -> None:
        if not ended.cancelled():
            ended.exception()  # Nobody waits for it any more.
        self.stuck.pop(task_id, None)
        self._freed()


def _end_of(held: Held) -> float:
    end = held.began_at + held.message.timeout_seconds
    return end if held.told_at is None else min(end, held.told_at)
