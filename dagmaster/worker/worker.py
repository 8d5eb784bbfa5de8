"""A worker: claims tasks for its free slots, runs them, and reports what became of them until it is heard."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace

from dagmaster.errors import DatabaseUnavailable
from dagmaster.handlers import Registry
from dagmaster.ids import new_id
from dagmaster.queues.contract import Queue, TaskMessage, TaskReport
from dagmaster.queues.postgres import PostgresQueue
from dagmaster.store.connect import LOST, Connection, connect, keep_json
from dagmaster.store.instances import Instance, beat_worker, register_worker, stop_worker, this_instance
from dagmaster.store.progress import tell_progress
from dagmaster.store.signals import Notifier
from dagmaster.worker.execute import Bench, execute
from dagmaster.worker.telling import Teller

log = logging.getLogger(__name__)

MAX_RECONNECT_SECONDS = 5.0
CLEANUP_SECONDS = 5.0
# A thread cannot be stopped: one that outlived its task must not stand in the way of the next.
STUCK_THREADS = 256


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    queues: tuple[str, ...]
    concurrency: int = 16
    poll_interval_seconds: float = 1.0
    heartbeat_interval_seconds: float = 30.0
    progress_interval_seconds: float = 1.0
    shutdown_grace_seconds: float = 30.0
    max_output_bytes: int = 16 * 1024 * 1024


class Worker:
    """`deliver` is the short way of a worker in its orchestrator's process: True when the report was taken."""

    def __init__(
        self,
        dsn: str,
        registry: Registry,
        options: WorkerOptions,
        notifier: Notifier,
        *,
        deliver: Callable[[TaskReport], bool] | None = None,
    ) -> None:
        self.me: Instance = this_instance()
        self.options = options
        self.completed = self.failed = 0
        self._dsn = dsn
        self._registry = registry
        self._handlers = frozenset(registry.names())
        self._notifier = notifier
        self._deliver = deliver
        self._executor = ThreadPoolExecutor(options.concurrency + STUCK_THREADS, thread_name_prefix="dagmaster-task")
        self._running: dict[str, asyncio.Task[None]] = {}
        self._reports: deque[TaskReport] = deque()
        self._teller = Teller()
        self._reserved = 0
        self._more_waits = True
        self._wake = asyncio.Event()
        self._stopping = False
        self._deadline: float | None = None
        self._unsure: set[str] = set()

    @property
    def worker_id(self) -> str:
        return self.me.instance_id

    @property
    def free_slots(self) -> int:
        if self._stopping:
            return 0
        return max(0, self.options.concurrency - len(self._running) - self._reserved)

    def _is_done(self) -> bool:
        """After the signal to stop: nothing is left to finish, or its time is over."""
        if not self._running and not self._reports:
            return True
        return self._deadline is not None and asyncio.get_running_loop().time() >= self._deadline

    def _patience(self) -> float:
        """How long to wait for something to happen: until the next poll, or until the time to finish is over."""
        seconds = self.options.poll_interval_seconds
        if self._deadline is not None:
            seconds = min(seconds, max(0.0, self._deadline - asyncio.get_running_loop().time()))
        return seconds

    # For an orchestrator in the same process.

    def reserve(self, queue: str, handler: str) -> bool:
        if self._stopping or self._more_waits or not self.free_slots:
            return False
        if queue not in self.options.queues or handler not in self._handlers:
            return False
        self._reserved += 1
        return True

    def release(self, messages: Sequence[TaskMessage]) -> None:
        self._reserved -= len(messages)
        self._unsure.update(message.task_id for message in messages)
        self._wake.set()

    def start(self, message: TaskMessage) -> None:
        self._reserved -= 1
        self._begin(message)

    def expect_more(self, queues: Collection[str]) -> None:
        if not set(queues).isdisjoint(self.options.queues):
            self.look()

    def look(self) -> None:
        """Something may wait in the queues."""
        self._more_waits = True
        self._wake.set()

    # The process.

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`; then finish or give back what is running."""
        stopper = asyncio.create_task(self._wake_on(stop))
        delay = 0.1
        try:
            while not stop.is_set():
                try:
                    await self._serve(stop)
                    delay = 0.1
                except* (*LOST, DatabaseUnavailable) as lost:  # In a group: several may have noticed it.
                    reason = _first_line(lost.exceptions[0])
                    log.warning("worker %s lost the database, trying again: %s", self.worker_id, reason)
                    with suppress(TimeoutError):
                        async with asyncio.timeout(delay):
                            await stop.wait()
                    delay = min(delay * 2, MAX_RECONNECT_SECONDS)
        finally:
            stopper.cancel()
            await self._leave()

    async def _wake_on(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._deadline = asyncio.get_running_loop().time() + self.options.shutdown_grace_seconds
        self._stopping = True
        self._wake.set()

    async def _serve(self, stop: asyncio.Event) -> None:
        """Work on one set of connections until they are lost or `stop` is set."""
        async with AsyncExitStack() as stack:
            durable = await stack.enter_async_context(await self._connect(durable=True))
            quick = await stack.enter_async_context(await self._connect(durable=False))
            await self._make_known(quick)
            queue = PostgresQueue(durable, quick, self.worker_id, self.options.queues, self._notifier)
            for message in await queue.forgotten(self._known()):
                self._begin(message)
            async with asyncio.TaskGroup() as group:
                chores = [
                    group.create_task(self._beat(quick, queue)),
                    group.create_task(self._watch(queue)),
                    group.create_task(self._tell(quick)),
                ]
                try:
                    await self._exchange(queue, stop)
                finally:
                    for chore in chores:
                        chore.cancel()

    async def _connect(self, *, durable: bool) -> Connection:
        conn = await connect(self._dsn, application="dagmaster worker", hot=True, durable=durable)
        keep_json(conn)
        return conn

    async def _make_known(self, conn: Connection) -> None:
        """Register; under a new name if the old one was given up while the database was out of reach."""
        if await beat_worker(conn, self.me, self.completed, self.failed) is not None:
            return
        if self._running:
            self._abandon()
        renamed = replace(self.me, instance_id=str(new_id()))
        options = self.options
        await register_worker(conn, renamed, options.queues, options.concurrency, self._handlers)
        self.me = renamed

    def _abandon(self) -> None:
        log.warning("worker %s was given up; its %d tasks belong to others now", self.worker_id, len(self._running))
        for task in self._running.values():
            task.cancel()

    async def _exchange(self, queue: Queue, stop: asyncio.Event) -> None:
        """The loop: one transaction reports what ended and claims what comes next. It ends when all has ended."""
        while not (stop.is_set() and self._is_done()):
            reports = list(self._reports)
            wanted = self.free_slots if self._more_waits else 0
            if reports or wanted:
                await self._trade(queue, reports, wanted)
                continue
            self._wake.clear()
            if self._reports or (self._more_waits and self.free_slots):
                continue
            try:
                async with asyncio.timeout(self._patience()):
                    await self._wake.wait()
            except TimeoutError:
                self._more_waits = True

    async def _trade(self, queue: Queue, reports: Sequence[TaskReport], wanted: int) -> None:
        self._reserved += wanted
        try:
            if wanted:
                self._more_waits = False
            claimed = await queue.exchange(reports, wanted)
        except BaseException:
            self._more_waits = True
            raise
        finally:
            self._reserved -= wanted
        for _ in reports:
            self._reports.popleft()
        for message in claimed:
            self._begin(message)
        if wanted and len(claimed) == wanted:
            self._more_waits = True
        # Let short tasks end before the next exchange, so that it carries all of them.
        await asyncio.sleep(0)

    def _known(self) -> list[str]:
        return [*self._running, *(report.task_id for report in self._reports)]

    def _begin(self, message: TaskMessage) -> None:
        self._unsure.discard(message.task_id)
        if message.task_id not in self._running:
            task = asyncio.create_task(self._run(message), name=message.task_id)
            self._running[message.task_id] = task
            task.add_done_callback(self._clear)

    def _clear(self, task: asyncio.Task[None]) -> None:
        """Free the slot, also of a task that was cancelled before it ran at all."""
        if self._running.get(task.get_name()) is task:
            del self._running[task.get_name()]
            self._wake.set()

    async def _run(self, message: TaskMessage) -> None:
        bench = Bench(self._registry, self.worker_id, self._executor, self.options.max_output_bytes, self._teller)
        try:
            report = await execute(message, bench)
        except BaseException:
            self._wake.set()
            raise
        finally:
            self._running.pop(message.task_id, None)
        if report.kind == "completed":
            self.completed += 1
        else:
            self.failed += 1
        self._hand_in(report)

    def _hand_in(self, report: TaskReport) -> None:
        """To the orchestrator of this process, or by way of the database."""
        if self._deliver is not None and self._deliver(report):
            if not self._more_waits and not self._stopping:
                return  # The orchestrator itself fills the slot.
        else:
            self._reports.append(report)
        self._wake.set()

    async def _beat(self, conn: Connection, queue: PostgresQueue) -> None:
        """The lease of everything this worker holds."""
        while True:
            await asyncio.sleep(self.options.heartbeat_interval_seconds)
            await self._make_known(conn)
            queue.worker_id = self.worker_id  # One that was given up claims nothing.

    async def _tell(self, conn: Connection) -> None:
        """How far the tasks are, one by one: a statement for several could wait for an owner that waits for it."""
        while True:
            await asyncio.sleep(self.options.progress_interval_seconds)
            for task_id, progress in self._teller.take():
                if task_id in self._running:
                    await tell_progress(conn, self.worker_id, task_id, progress)

    async def _watch(self, queue: Queue) -> None:
        """Stop what is no longer to be done: its job was cancelled or failed, or another attempt has begun."""
        while True:
            await asyncio.sleep(self.options.poll_interval_seconds)
            if self._unsure:
                await self._make_sure(queue)
            if held := list(self._running):
                self._cancel(await queue.withdrawn(held))

    async def _make_sure(self, queue: Queue) -> None:
        """Tasks that were claimed after all are begun; those of which the database knows nothing never were."""
        asked = set(self._unsure)
        for message in await queue.forgotten(self._known()):
            if message.task_id in self._unsure:
                self._begin(message)
        self._unsure -= asked

    def _cancel(self, task_ids: Collection[str]) -> None:
        for task_id in task_ids:
            if (task := self._running.get(task_id)) is not None:
                log.info("task %s was withdrawn", task_id)
                task.cancel()

    async def _leave(self) -> None:
        """Give back what was not finished in time, and say good-bye."""
        self._stopping = True
        for task_id, task in list(self._running.items()):
            job_id, rest = task_id.split("_", 1)
            task.cancel()
            self._reports.append(TaskReport(task_id, int(job_id), rest.rpartition("_")[0], "given_back"))
        self._executor.shutdown(wait=False, cancel_futures=True)
        with suppress(*LOST, DatabaseUnavailable, TimeoutError):
            async with asyncio.timeout(CLEANUP_SECONDS), await self._connect(durable=True) as conn:
                if self._reports:
                    queue = PostgresQueue(conn, conn, self.worker_id, self.options.queues, self._notifier)
                    await queue.exchange(list(self._reports), 0)
                await stop_worker(conn, self.me, self.completed, self.failed)


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
