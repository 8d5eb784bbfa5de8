"""A worker: claims tasks for its free slots, runs them, and reports what became of them until it is heard."""

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from time import monotonic
from typing import Any

from dagmaster.handlers import Registry
from dagmaster.handlers.contract import clean_text
from dagmaster.ids import TaskId, WorkerId
from dagmaster.model.redact import redact_text
from dagmaster.model.retry import TIMED_OUT
from dagmaster.queues.contract import (
    DesiredState,
    Link,
    Registration,
    SavedCheckpoint,
    Standing,
    TaskMessage,
    TaskReport,
    Transport,
)
from dagmaster.tasklogs.contract import TaskLogs
from dagmaster.worker.execute import ExecutionContext, execute
from dagmaster.worker.lag import LoopWatch
from dagmaster.worker.logbook import Logbook
from dagmaster.worker.loop_guard import surviving_handlers
from dagmaster.worker.options import WorkerOptions
from dagmaster.worker.outbox import Outbox
from dagmaster.worker.processes.children import Children
from dagmaster.worker.progress_buffer import ProgressBuffer
from dagmaster.worker.progress_sender import ProgressSender
from dagmaster.worker.result_cache import ResultCache
from dagmaster.worker.slots import Held, Slots
from dagmaster.worker.spool import Spool
from dagmaster.worker.unconfirmed_claims import Freshness, UnconfirmedClaims
from dagmaster.worker.worker_status import standing_stats

log = logging.getLogger(__name__)

MAX_RECONNECT_SECONDS = 5.0
CLEANUP_SECONDS = 5.0
# How soon a worker sees that a task was withdrawn from it, or that it should drain.
WATCH_SECONDS = 1.0
# However seldom a worker must beat, people want to know how it is.
TELL_SECONDS = 10.0


class Worker:
    """`deliver` is the short way of a worker in its orchestrator's process: True when the report was taken. `mailed`
    tells the same orchestrator of what it is to read first.

    `spool` keeps reports on disk until they are taken, for a worker whose server may be away for long.
    """

    def __init__(
        self,
        transport: Transport,
        registry: Registry,
        options: WorkerOptions,
        logs: TaskLogs,
        *,
        deliver: Callable[[TaskReport], bool] | None = None,
        mailed: Callable[[], None] | None = None,
        spool: Spool | None = None,
    ) -> None:
        self.worker_id = WorkerId("")
        self.options = options
        self.completed = self.failed = 0
        self.wanted: DesiredState = "run"
        self.is_connected = False
        self.slots = Slots(options.concurrency, self._slot_freed)
        self._transport = transport
        self.handlers = frozenset(registry.spellings())
        self._contracts = tuple(one.contract() for one in registry)
        self._deliver = deliver
        self._outbox = Outbox(spool)
        self._threads = ThreadPoolExecutor(options.concurrency, thread_name_prefix="dagmaster-task")
        self._children = Children(
            registry,
            options.handler_specs,
            kill_after_seconds=options.stop_within_seconds,
            max_output_bytes=options.max_output_bytes,
        )
        self._progress_buffer = ProgressBuffer(options.max_output_bytes)
        self._progress_sender = ProgressSender(
            self._progress_buffer, self.slots, transport.lost, self._withdraw, mailed
        )
        self._logbook = Logbook(logs, options.max_log_bytes)
        self._execution = ExecutionContext(
            registry,
            self._threads,
            self._children,
            self._progress_buffer,
            self._logbook,
            options.max_output_bytes,
            options.stop_within_seconds,
            self._discard,
            self.slots.finish,
            self._leave_behind,
            ResultCache(lambda: self._link),
            self._open_secrets,
            transport.handler_pool,
        )
        self._link: Link | None = None
        self._more_waits = True
        self._wake = asyncio.Event()
        self._freed = asyncio.Event()
        self.is_stopping = False
        self._stop: asyncio.Event | None = None
        self._main: asyncio.Task[Any] | None = None
        self._claiming: asyncio.Task[None] | None = None
        self._deadline: float | None = None
        self._reserved_at = 0.0
        self._freshness = Freshness(options.lease_seconds)
        self.unconfirmed = UnconfirmedClaims(self._freshness)
        self._given_up: set[TaskId] = set()

    @property
    def is_taking(self) -> bool:
        return not self.is_stopping and self.wanted == "run"

    @property
    def free_slots(self) -> int:
        """How many tasks it may claim: none while its results pile up, for memory would fill with them."""
        if not self.is_taking or self._outbox.is_full:
            return 0
        return max(0, self.slots.free - len(self.unconfirmed))

    def standing(self) -> Standing:
        return Standing(self.completed, self.failed, standing_stats(self.slots, self._children, self.unconfirmed))

    def _is_done(self) -> bool:
        """After the signal to stop: nothing is left to finish, or its time is over."""
        if not self.slots.held and not self._outbox:
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
        if self._more_waits or not self.free_slots:
            return False
        if queue not in self.options.queues or handler not in self.handlers:
            return False
        self.slots.reserved += 1
        self._reserved_at = monotonic()
        return True

    def release(self, messages: Sequence[TaskMessage]) -> None:
        self.slots.reserved -= len(messages)
        self.unconfirmed.about(message.task_id for message in messages)
        self._wake.set()

    def start(self, message: TaskMessage) -> None:
        self.slots.reserved -= 1
        self._begin(message, self._reserved_at)

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
        self._stop, self._main = stop, asyncio.current_task()
        background = [asyncio.create_task(self._wake_on(stop)), asyncio.create_task(self._logbook.run())]
        self._outbox.recover()
        try:
            with LoopWatch().running(), surviving_handlers():
                await self._children.start()
                await self._serve_until(stop)
        finally:
            await self._leave()
            for one in background:
                one.cancel()
            await self._logbook.flush()
            await self._children.close()

    async def _serve_until(self, stop: asyncio.Event) -> None:
        delay = 0.1
        while not stop.is_set():
            try:
                await self._serve(stop)
                delay = 0.1
            except* self._transport.lost as lost:  # In a group: several may have noticed it.
                reason = _first_line(lost.exceptions[0])
                log.warning("worker %s lost its connection, reconnecting: %s", self.worker_id, reason)
                with suppress(TimeoutError):
                    async with asyncio.timeout(delay):
                        await stop.wait()
                delay = min(delay * 2, MAX_RECONNECT_SECONDS)

    async def _wake_on(self, stop: asyncio.Event) -> None:
        """Stop claiming, and tell the handlers: the next checkpoint is their last here."""
        await stop.wait()
        self._deadline = asyncio.get_running_loop().time() + self.options.shutdown_grace_seconds
        self.is_stopping = True
        self._execution.stopping.set()
        self._children.stop_gently()
        if self._claiming is not None:
            self._claiming.cancel()
        self._wake.set()

    async def _serve(self, stop: asyncio.Event) -> None:
        """Work on one connection until it is lost or `stop` is set and all has ended."""
        async with self._transport.open(self.worker_id or None) as link:
            await self._make_known(link)
            await self._recall(link)
            self._link, self.is_connected = link, True
            try:
                await self._work_on(link, stop)
            finally:
                self._link, self.is_connected = None, False

    async def _work_on(self, link: Link, stop: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as group:
            chores = [group.create_task(chore) for chore in self._chores(link)]
            try:
                await self._exchange(link, stop)
            finally:
                for chore in chores:
                    chore.cancel()

    def _chores(self, link: Link) -> Iterator[Coroutine[Any, Any, None]]:
        """What goes on beside the tasks."""
        yield self._beat(link)
        yield self._watch(link)
        yield self._progress_sender.tell_progress(link, self.options.progress_interval_seconds)
        yield self._progress_sender.save_what_comes(link)
        if self._transport.waits:
            yield self._claim(link)

    async def _make_known(self, link: Link) -> None:
        """Register; under a new name if the old one was given up while the connection was lost."""
        if self.worker_id and await link.beat(self.standing()):
            return
        if self.slots.held:
            log.warning("worker %s was declared lost; %d tasks go to others", self.worker_id, len(self.slots.held))
            self._withdraw(list(self.slots.held))
        offer = Registration(
            socket.gethostname(),
            os.getpid(),
            self.options.queues,
            tuple(sorted(self.handlers)),
            self.options.concurrency,
            self._contracts,
        )
        self.worker_id = await link.register(offer)

    async def _recall(self, link: Link) -> None:
        """Begin what was claimed for this worker without its knowing."""
        asked = monotonic()
        for message in await link.forgotten(self._known()):
            self._begin(message, asked)

    async def _exchange(self, link: Link, stop: asyncio.Event) -> None:
        """The loop: one transaction reports what ended and claims what comes next. It ends when all has ended."""
        claims = not self._transport.waits
        while not (stop.is_set() and self._is_done()):
            reports = self._outbox.first()
            wanted = self.free_slots if claims and self._more_waits else 0
            if reports or wanted:
                await self._trade(link, reports, wanted)
                continue
            self._wake.clear()
            if self._outbox or (claims and self._more_waits and self.free_slots):
                continue
            try:
                async with asyncio.timeout(self._patience()):
                    await self._wake.wait()
            except TimeoutError:
                self._more_waits = True

    async def _claim(self, link: Link) -> None:
        """Where a claim waits until there is something to do, it must not hold up the reports."""
        while not self.is_stopping:
            self._freed.clear()
            if not self.free_slots:
                await self._until_freed()
                continue
            self._claiming = asyncio.ensure_future(self._trade(link, (), self.free_slots))
            try:
                await self._claiming
            except asyncio.CancelledError:
                if not self.is_stopping:
                    raise
            finally:
                self._claiming = None

    async def _until_freed(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self.options.poll_interval_seconds):
                await self._freed.wait()

    async def _trade(self, link: Link, reports: Sequence[TaskReport], wanted: int) -> None:
        asked = monotonic()
        self.slots.reserved += wanted
        try:
            if wanted:
                self._more_waits = False
            claimed = await link.exchange(reports, wanted)
        except BaseException:
            self._more_waits = True
            raise
        finally:
            self.slots.reserved -= wanted
        self._outbox.remove(reports)
        if reports:
            self._freed.set()
        for message in claimed:
            self._begin(message, asked)
        if wanted and len(claimed) == wanted:
            self._more_waits = True
        # Let short tasks end before the next exchange, so that it carries all of them.
        await asyncio.sleep(0)

    def _known(self) -> list[TaskId]:
        return [*self.slots.held, *self.slots.stuck, *self._outbox.task_ids()]

    def _begin(self, message: TaskMessage, asked: float) -> None:
        if not self._freshness.holds(asked):
            self.unconfirmed.about([message.task_id])
            return
        self.unconfirmed.dispel(message.task_id)
        if message.task_id not in self.slots.held and message.task_id not in self.slots.stuck:
            self.slots.take(message, asyncio.create_task(self._run(message), name=message.task_id))

    async def _run(self, message: TaskMessage) -> None:
        try:
            report = await self._execute(message)
            await self._progress_sender.tell_last(self._link, message.task_id)
        except asyncio.CancelledError:
            if self.is_stopping or self._is_dying() or self.slots.was_told(message.task_id):
                raise
            report = _failed(message, "the handler cancelled its own task")
        except Exception as error:  # What is not reported stands still until its time is over.
            log.exception("task %s cannot be executed", message.task_id)
            report = _failed(message, f"cannot be executed: {type(error).__name__}: {error}")
        if message.task_id in self._given_up:
            self._given_up.discard(message.task_id)
            return  # Its time was over long ago, and so it was reported.
        self.slots.held.pop(message.task_id, None)
        self._hand_in(report)

    def _is_dying(self) -> bool:
        """All that runs in this process is being cancelled: that is no task's own fault."""
        return self._main is not None and (self._main.done() or self._main.cancelling() > 0)

    async def _execute(self, message: TaskMessage) -> TaskReport:
        return await execute(message, self._execution, self.worker_id)

    def _hand_in(self, report: TaskReport) -> None:
        """To the orchestrator of this process, or by way of the queue."""
        if report.kind == "completed":
            self.completed += 1
        elif report.kind == "failed":
            self.failed += 1
        if self._deliver is not None and self._deliver(report):
            if not self._more_waits and self.is_taking:
                return  # The orchestrator itself fills the slot.
        else:
            self._outbox.add(report)
        self._slot_freed()

    def _slot_freed(self) -> None:
        self._freed.set()
        self._wake.set()

    # What goes on beside the tasks.

    async def _beat(self, link: Link) -> None:
        """The lease of everything this worker holds."""
        while True:
            await asyncio.sleep(min(self.options.heartbeat_interval_seconds, TELL_SECONDS))
            await self._make_known(link)

    async def _discard(self, task_id: TaskId, checkpoint_id: int, reason: str) -> SavedCheckpoint | None:
        if self._link is None:
            return None
        try:
            return await self._link.discard(task_id, checkpoint_id, reason)
        except self._transport.lost:  # The next attempt finds it again.
            return None

    async def _open_secrets(self, task_id: TaskId, references: Collection[str]) -> Mapping[str, str]:
        """Of a task that has just been claimed: while the connection is lost it is waited for."""
        while (link := self._link) is None:  # noqa: ASYNC110 - the connection comes back by itself, and tells nobody
            await asyncio.sleep(self.options.poll_interval_seconds)
        return await link.open_secrets(task_id, references)

    async def _watch(self, link: Link) -> None:
        """Stop what is no longer to be done: its job was cancelled or failed, or another attempt has begun."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(min(WATCH_SECONDS, self.options.poll_interval_seconds)):
                    await self.unconfirmed.raised.wait()
            claimed, asked = await self.unconfirmed.settle(link, self._known())
            for message in claimed:
                self._begin(message, asked)
            orders = await link.orders(list(self.slots.held))
            self._withdraw(orders.withdrawn)
            self._obey(orders.wanted)
            for held in self.slots.overdue(self.options.stop_within_seconds + WATCH_SECONDS):
                self._give_up_on(held)

    def _withdraw(self, task_ids: Collection[TaskId]) -> None:
        for task_id in self.slots.tell_to_end(task_ids):
            log.info("task %s was revoked", task_id)
            self._progress_buffer.forget(task_id)

    def _obey(self, wanted: DesiredState) -> None:
        if wanted == self.wanted:
            return
        log.info("worker %s was asked to %s", self.worker_id, wanted)
        self.wanted = wanted
        if wanted == "stop" and self._stop is not None:
            self._stop.set()
        self.look()

    def _give_up_on(self, held: Held) -> None:
        """A coroutine that does not let itself be cancelled: nobody waits for it any longer."""
        message = held.message
        self._given_up.add(message.task_id)
        self._leave_behind(message.task_id, held.runner)
        if held.told_at is not None:
            return
        error = f"timed out after {message.timeout_seconds:g} s, but its handler is still running and occupies a slot"
        self._hand_in(_failed(message, error, TIMED_OUT))

    def _leave_behind(self, task_id: TaskId, work: Future[Any] | asyncio.Future[Any]) -> None:
        log.error("task %s is over, but its handler is still running and occupies a slot", task_id)
        self.slots.leave_behind(task_id, work)

    # The end.

    async def _leave(self) -> None:
        """Give back what was not finished in time, and say good-bye."""
        was_asked = self._stop is not None and self._stop.is_set()
        dies_with = 0 if was_asked else len(self.slots.held)
        self.is_stopping = True
        await self._end_tasks(give_back=was_asked)
        self._threads.shutdown(wait=False, cancel_futures=True)
        if not self.worker_id:
            return
        with suppress(*self._transport.lost, TimeoutError):
            async with asyncio.timeout(CLEANUP_SECONDS), self._transport.open(self.worker_id) as link:
                await self._progress_sender.save_all(link)
                unknown = await link.forgotten(self._known()) if was_asked else []
                if unknown:
                    await link.exchange([_given_back(message) for message in unknown], 0)
                while reports := self._outbox.first():
                    await link.exchange(reports, 0)
                    self._outbox.remove(reports)
                if not dies_with:  # Otherwise its lease runs out, and they are lost.
                    await link.leave(self.standing())

    async def _end_tasks(self, *, give_back: bool) -> None:
        """What a worker that dies has held is lost: one of them may be the reason, and its attempt must count."""
        held = list(self.slots.held.values())
        for one in held:
            one.runner.cancel()
        if held:
            # They may still clean up, and processes are ended.
            await asyncio.wait([one.runner for one in held], timeout=self.options.stop_within_seconds + 1)
        for one in held if give_back else ():
            if not one.runner.done() or one.runner.cancelled():  # The others were reported.
                self._outbox.add(_given_back(one.message))


def _given_back(message: TaskMessage) -> TaskReport:
    return TaskReport(message.task_id, message.job_id, message.node_id, "given_back")


def _failed(message: TaskMessage, error: str, error_types: tuple[str, ...] = ()) -> TaskReport:
    told = redact_text(clean_text(error))
    return TaskReport(message.task_id, message.job_id, message.node_id, "failed", error=told, error_types=error_types)


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
