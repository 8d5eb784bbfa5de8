"""A worker: claims tasks for its free slots, runs them, and reports their results until they are accepted."""

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any

from dagmaster.handlers import Registry
from dagmaster.ids import TaskId, WorkerId
from dagmaster.queues.contract import DesiredState, Heartbeat, Link, Registration, TaskMessage, TaskReport, Transport
from dagmaster.tasklogs.contract import LogWriter
from dagmaster.worker.execute import execute
from dagmaster.worker.loop_guard import LoopWatch, surviving_handlers
from dagmaster.worker.options import WorkerOptions
from dagmaster.worker.processes.system import peak_memory
from dagmaster.worker.spool import Outbox, Spool
from dagmaster.worker.task_runner import TaskRunner

log = logging.getLogger(__name__)

MAX_RECONNECT_SECONDS = 5.0
CLEANUP_SECONDS = 5.0
# How soon a worker learns that a task was revoked, or that it should drain.
WATCH_SECONDS = 1.0
# The heartbeat also publishes the statistics: it is sent at least this often, however long the lease.
PUBLISH_SECONDS = 10.0


class Worker:
    """`deliver` hands a report to the orchestrator of the same process; True when it was taken. `mailed` tells that
    orchestrator to read its mail first.

    `spool` keeps reports on disk until they are accepted, for a worker whose server may be away for long.
    """

    def __init__(
        self,
        transport: Transport,
        registry: Registry,
        options: WorkerOptions,
        logs: LogWriter,
        *,
        deliver: Callable[[TaskReport], bool] | None = None,
        mailed: Callable[[], None] | None = None,
        spool: Spool | None = None,
    ) -> None:
        self.worker_id = WorkerId("")
        self.options = options
        self.completed = self.failed = 0
        self.desired_state: DesiredState = "run"
        self.is_connected = False
        self.handlers = frozenset(registry.spellings())
        self.task_runner = TaskRunner(
            transport,
            registry,
            options,
            logs,
            execute=self._execute,
            hand_in=self._hand_in,
            freed=self._slot_freed,
            mailed=mailed,
        )
        self.slots = self.task_runner.slots
        self.unconfirmed = self.task_runner.unconfirmed
        self._transport = transport
        self._contracts = tuple(handler.contract() for handler in registry)
        self._deliver = deliver
        self._outbox = Outbox(spool)
        self._more_waits = True
        self._wake = asyncio.Event()
        self._freed = asyncio.Event()
        self._stop: asyncio.Event | None = None
        self._claiming: asyncio.Task[None] | None = None
        self._deadline: float | None = None
        self._reserved_at = 0.0

    @property
    def is_stopping(self) -> bool:
        return self.task_runner.is_stopping

    @property
    def is_taking(self) -> bool:
        return not self.is_stopping and self.desired_state == "run"

    @property
    def free_slots(self) -> int:
        """How many tasks the worker may claim: none while reports pile up, which would fill the memory."""
        if not self.is_taking or self._outbox.is_full:
            return 0
        return max(0, self.slots.free - len(self.unconfirmed))

    def heartbeat(self) -> Heartbeat:
        stats = {
            "running": len(self.slots.running),
            "stuck": sorted(self.slots.stuck),
            "unconfirmed": len(self.unconfirmed),
            "processes": len(self.task_runner.children.pids),
            "peak_memory_bytes": peak_memory(),
        }
        return Heartbeat(self.completed, self.failed, stats)

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
        self.unconfirmed.add(message.task_id for message in messages)
        self._wake.set()

    def start(self, message: TaskMessage) -> None:
        self.slots.reserved -= 1
        self.task_runner.begin(message, self._reserved_at)

    def expect_more(self, queues: Collection[str]) -> None:
        if not set(queues).isdisjoint(self.options.queues):
            self.check_queues()

    def check_queues(self) -> None:
        """Claim soon: tasks may wait in the queues."""
        self._more_waits = True
        self._wake.set()

    # The process.

    async def run(self, stop: asyncio.Event) -> None:
        """Run until `stop`, then finish the running tasks or give them back."""
        self._stop = stop
        background = [asyncio.create_task(self._stop_on(stop)), asyncio.create_task(self.task_runner.logbook.run())]
        self._outbox.recover()
        try:
            with LoopWatch().running(), surviving_handlers():
                await self.task_runner.start()
                await self._serve_until(stop)
        finally:
            await self._leave()
            for task in background:
                task.cancel()
            await self.task_runner.close()

    async def _serve_until(self, stop: asyncio.Event) -> None:
        delay = 0.1
        while not stop.is_set():
            try:
                await self._serve(stop)
                delay = 0.1
            except* self._transport.lost as lost:  # A group: several tasks may have noticed the loss.
                reason = str(lost.exceptions[0]).strip().partition("\n")[0]
                log.warning("worker %s lost its connection, reconnecting: %s", self.worker_id, reason)
                await _wait_for(stop, delay)
                delay = min(delay * 2, MAX_RECONNECT_SECONDS)

    async def _stop_on(self, stop: asyncio.Event) -> None:
        """Stop claiming, and let handlers stop at their next checkpoint."""
        await stop.wait()
        self._deadline = asyncio.get_running_loop().time() + self.options.shutdown_grace_seconds
        self.task_runner.stop_gently()
        if self._claiming is not None:
            self._claiming.cancel()
        self._wake.set()

    async def _serve(self, stop: asyncio.Event) -> None:
        """Work on one connection until it is lost, or until `stop` is set and all tasks have ended."""
        async with self._transport.open(self.worker_id or None) as link:
            await self._ensure_registered(link)
            await link.listen(self.check_queues)
            await self._start_forgotten(link)
            self.task_runner.link, self.is_connected = link, True
            try:
                await self._work_on(link, stop)
            finally:
                self.task_runner.link, self.is_connected = None, False

    async def _work_on(self, link: Link, stop: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as group:
            chores = [group.create_task(chore) for chore in self._chores(link)]
            try:
                await self._exchange_until(link, stop)
            finally:
                for chore in chores:
                    chore.cancel()

    def _chores(self, link: Link) -> Iterator[Coroutine[Any, Any, None]]:
        progress_sender = self.task_runner.progress_sender
        yield self._beat(link)
        yield self._watch(link)
        yield link.tell_starts()
        yield progress_sender.tell_progress(link, self.options.progress_interval_seconds)
        yield progress_sender.save_until_cancelled(link)
        if self._transport.waits:
            yield self._claim(link)

    async def _ensure_registered(self, link: Link) -> None:
        """Renew the lease, or register under a new id if the worker was declared lost."""
        if self.worker_id and await link.beat(self.heartbeat()):
            return
        if self.slots.running:
            log.warning("worker %s was declared lost; %d tasks go to others", self.worker_id, len(self.slots.running))
            self.task_runner.revoke(list(self.slots.running))
        offer = Registration(
            socket.gethostname(),
            os.getpid(),
            self.options.queues,
            tuple(sorted(self.handlers)),
            self.options.concurrency,
            self._contracts,
        )
        self.worker_id = await link.register(offer)

    async def _start_forgotten(self, link: Link) -> None:
        """Start tasks whose claim was lost with its response."""
        requested_at = monotonic()
        for message in await link.forgotten(self._known()):
            self.task_runner.begin(message, requested_at)

    # Claims and reports.

    async def _exchange_until(self, link: Link, stop: asyncio.Event) -> None:
        """Report and claim, both in one transaction, until `stop` is set and nothing is left to do."""
        claims = not self._transport.waits
        while not (stop.is_set() and self._is_done()):
            reports = self._outbox.first()
            limit = self.free_slots if claims and self._more_waits else 0
            if reports or limit:
                await self._exchange(link, reports, limit)
                continue
            self._wake.clear()
            if self._outbox or (claims and self._more_waits and self.free_slots):
                continue
            if not await _wait_for(self._wake, self._seconds_to_wait()):
                self._more_waits = True

    def _is_done(self) -> bool:
        """While stopping: whether nothing is left to finish, or the grace period is over."""
        if not self.slots.running and not self._outbox:
            return True
        return self._deadline is not None and asyncio.get_running_loop().time() >= self._deadline

    def _seconds_to_wait(self) -> float:
        """The seconds until the next poll or the end of the grace period."""
        seconds = self.options.poll_interval_seconds
        if self._deadline is not None:
            seconds = min(seconds, max(0.0, self._deadline - asyncio.get_running_loop().time()))
        return seconds

    async def _claim(self, link: Link) -> None:
        """Claim separately where a claim blocks until there is a task: it must not delay the reports."""
        while not self.is_stopping:
            self._freed.clear()
            if not self.free_slots:
                await _wait_for(self._freed, self.options.poll_interval_seconds)
                continue
            self._claiming = asyncio.ensure_future(self._exchange(link, (), self.free_slots))
            try:
                await self._claiming
            except asyncio.CancelledError:
                if not self.is_stopping:
                    raise
            finally:
                self._claiming = None

    async def _exchange(self, link: Link, reports: Sequence[TaskReport], limit: int) -> None:
        requested_at = monotonic()
        self.slots.reserved += limit
        try:
            if limit:
                self._more_waits = False
            claimed = await link.exchange(reports, limit)
        except BaseException:
            self._more_waits = True
            raise
        finally:
            self.slots.reserved -= limit
        self._outbox.remove(reports)
        if reports:
            self._freed.set()
        for message in claimed:
            self.task_runner.begin(message, requested_at)
        if limit and len(claimed) == limit:
            self._more_waits = True
        # Let short tasks end before the next exchange, so that it carries all of them.
        await asyncio.sleep(0)

    def _known(self) -> list[TaskId]:
        return [*self.slots.running, *self.slots.stuck, *self._outbox.task_ids()]

    async def _execute(self, message: TaskMessage) -> TaskReport:
        return await execute(message, self.task_runner.execution, self.worker_id)

    def _hand_in(self, report: TaskReport) -> None:
        """Give the report to the orchestrator of this process, or put it into the outbox."""
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

    # The heartbeat, and the orders to the worker.

    async def _beat(self, link: Link) -> None:
        while True:
            await asyncio.sleep(min(self.options.heartbeat_interval_seconds, PUBLISH_SECONDS))
            await self._ensure_registered(link)

    async def _watch(self, link: Link) -> None:
        """Confirm claims, stop revoked tasks and follow the desired state."""
        while True:
            await _wait_for(self.unconfirmed.raised, min(WATCH_SECONDS, self.options.poll_interval_seconds))
            claimed, requested_at = await self.unconfirmed.settle(link, self._known())
            for message in claimed:
                self.task_runner.begin(message, requested_at)
            orders = await link.orders(list(self.slots.running))
            self.task_runner.revoke(orders.withdrawn)
            self._follow(orders.desired_state)
            self.task_runner.abandon_overdue(WATCH_SECONDS)

    def _follow(self, state: DesiredState) -> None:
        if state == self.desired_state:
            return
        log.info("worker %s was asked to %s", self.worker_id, state)
        self.desired_state = state
        if state == "stop" and self._stop is not None:
            self._stop.set()
        self.check_queues()

    # The end.

    async def _leave(self) -> None:
        """Give back the tasks that were not finished in time, send the last reports, and deregister.

        The tasks of a worker that dies are lost, not given back: one of them may be the cause, and its attempt counts.
        """
        was_asked = self._stop is not None and self._stop.is_set()
        loses_tasks = not was_asked and bool(self.slots.running)
        unfinished = await self.task_runner.end_all()
        for message in unfinished if was_asked else ():
            self._outbox.add(_given_back(message))
        if not self.worker_id:
            return
        with suppress(*self._transport.lost, TimeoutError):
            async with asyncio.timeout(CLEANUP_SECONDS), self._transport.open(self.worker_id) as link:
                await self.task_runner.progress_sender.save_all(link)
                unknown = await link.forgotten(self._known()) if was_asked else []
                if unknown:
                    await link.exchange([_given_back(message) for message in unknown], 0)
                while reports := self._outbox.first():
                    await link.exchange(reports, 0)
                    self._outbox.remove(reports)
                if not loses_tasks:  # Otherwise its lease expires, and they are lost.
                    await link.leave(self.heartbeat())


def _given_back(message: TaskMessage) -> TaskReport:
    return TaskReport(message.task_id, message.job_id, message.node_id, "given_back")


async def _wait_for(event: asyncio.Event, seconds: float) -> bool:
    """Whether the event was set within that time."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            return await event.wait()
    return False
