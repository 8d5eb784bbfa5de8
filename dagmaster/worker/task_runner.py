"""Run claimed tasks in slots: start, revoke and abandon them, and hand in the report of each."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from dagmaster.handlers import Registry
from dagmaster.handlers.contract import clean_text
from dagmaster.ids import TaskId
from dagmaster.model.redact import redact_text
from dagmaster.model.retry import TIMED_OUT
from dagmaster.queues.contract import Link, SavedCheckpoint, TaskMessage, TaskReport, Transport
from dagmaster.tasklogs.contract import LogWriter
from dagmaster.worker.execute import ExecutionContext
from dagmaster.worker.logbook import Logbook
from dagmaster.worker.options import WorkerOptions
from dagmaster.worker.processes.children import Children
from dagmaster.worker.progress import ProgressBuffer, ProgressSender
from dagmaster.worker.result_cache import ResultCache
from dagmaster.worker.slots import RunningTask, Slots
from dagmaster.worker.unconfirmed_claims import Freshness, UnconfirmedClaims

log = logging.getLogger(__name__)


class TaskRunner:
    """`execute` runs one task to its report, `hand_in` takes the report and `freed` is called when a slot is free.

    `link` is the worker's connection; None while it is lost.
    """

    def __init__(
        self,
        transport: Transport,
        registry: Registry,
        options: WorkerOptions,
        logs: LogWriter,
        *,
        execute: Callable[[TaskMessage], Awaitable[TaskReport]],
        hand_in: Callable[[TaskReport], None],
        freed: Callable[[], None],
        mailed: Callable[[], None] | None,
    ) -> None:
        self.link: Link | None = None
        self.is_stopping = False
        self.slots = Slots(options.concurrency, freed)
        self.freshness = Freshness(options.lease_seconds)
        self.unconfirmed = UnconfirmedClaims(self.freshness)
        self.logbook = Logbook(logs, options.max_log_bytes)
        self.children = Children(
            registry,
            options.handler_specs,
            kill_after_seconds=options.stop_within_seconds,
            max_output_bytes=options.max_output_bytes,
        )
        self._threads = ThreadPoolExecutor(options.concurrency, thread_name_prefix="dagmaster-task")
        self._progress_buffer = ProgressBuffer(options.max_output_bytes)
        self.progress_sender = ProgressSender(self._progress_buffer, self.slots, transport.lost, self.revoke, mailed)
        self.execution = ExecutionContext(
            registry,
            self._threads,
            self.children,
            self._progress_buffer,
            self.logbook,
            options.max_output_bytes,
            options.stop_within_seconds,
            self._discard,
            self.slots.finish,
            self._leave_behind,
            ResultCache(lambda: self.link),
            self._open_secrets,
            transport.handler_pool,
        )
        self._lost = transport.lost
        self._options = options
        self._execute = execute
        self._hand_in = hand_in
        self._main: asyncio.Task[Any] | None = None
        self._abandoned: set[TaskId] = set()

    async def start(self) -> None:
        self._main = asyncio.current_task()
        await self.children.start()

    def begin(self, message: TaskMessage, requested_at: float) -> None:
        """Start a task, unless the response to its claim came so late that the claim must be confirmed first."""
        if not self.freshness.holds(requested_at):
            self.unconfirmed.add([message.task_id])
            return
        self.unconfirmed.confirm(message.task_id)
        if message.task_id not in self.slots.running and message.task_id not in self.slots.stuck:
            self.slots.take(message, asyncio.create_task(self._run(message), name=message.task_id))

    async def _run(self, message: TaskMessage) -> None:
        try:
            report = await self._execute(message)
            await self.progress_sender.tell_last(self.link, message.task_id)
        except asyncio.CancelledError:
            if self.is_stopping or self._is_dying() or self.slots.was_revoked(message.task_id):
                self._abandoned.discard(message.task_id)
                raise
            report = _failed(message, "the handler cancelled its own task")
        except Exception as error:  # A task without a report would hang until its timeout.
            log.exception("task %s cannot be executed", message.task_id)
            report = _failed(message, f"cannot be executed: {type(error).__name__}: {error}")
        if message.task_id in self._abandoned:
            self._abandoned.discard(message.task_id)
            return  # Its timeout was reported long ago.
        self.slots.running.pop(message.task_id, None)
        self._hand_in(report)

    def _is_dying(self) -> bool:
        """Whether the worker itself is being cancelled, which is no failure of its tasks."""
        return self._main is not None and (self._main.done() or self._main.cancelling() > 0)

    def revoke(self, task_ids: Collection[TaskId]) -> None:
        for task_id in self.slots.revoke(task_ids):
            log.info("task %s was revoked", task_id)
            self._progress_buffer.forget(task_id)

    def abandon_overdue(self, grace_seconds: float) -> None:
        """Stop waiting for coroutines that ignore their cancellation."""
        for task in self.slots.overdue(self._options.stop_within_seconds + grace_seconds):
            self._abandon(task)

    def _abandon(self, task: RunningTask) -> None:
        message = task.message
        self._abandoned.add(message.task_id)
        self._leave_behind(message.task_id, task.runner)
        if task.revoked_at is not None:
            return
        error = f"timed out after {message.timeout_seconds:g} s, but its handler is still running and occupies a slot"
        self._hand_in(_failed(message, error, TIMED_OUT))

    def _leave_behind(self, task_id: TaskId, work: Future[Any] | asyncio.Future[Any]) -> None:
        log.error("task %s is over, but its handler is still running and occupies a slot", task_id)
        self.slots.leave_behind(task_id, work)

    async def _discard(self, task_id: TaskId, checkpoint_id: int, reason: str) -> SavedCheckpoint | None:
        if self.link is None:
            return None
        try:
            return await self.link.discard(task_id, checkpoint_id, reason)
        except self._lost:  # The next attempt finds the checkpoint again.
            return None

    async def _open_secrets(self, task_id: TaskId, references: Collection[str]) -> Mapping[str, str]:
        """Open the secrets of a task that was just claimed, waiting for the connection if it is lost."""
        while (link := self.link) is None:  # noqa: ASYNC110 - there is no event for a new connection
            await asyncio.sleep(self._options.poll_interval_seconds)
        return await link.open_secrets(task_id, references)

    def stop_gently(self) -> None:
        """Let handlers stop at their next checkpoint."""
        self.is_stopping = True
        self.execution.stopping.set()
        self.children.stop_gently()

    async def end_all(self) -> list[TaskMessage]:
        """Cancel the tasks that still run; returns those that end without a report."""
        self.is_stopping = True
        tasks = list(self.slots.running.values())
        for task in tasks:
            task.runner.cancel()
        if tasks:
            # Handlers may clean up, and processes are ended.
            await asyncio.wait([task.runner for task in tasks], timeout=self._options.stop_within_seconds + 1)
        self._threads.shutdown(wait=False, cancel_futures=True)
        return [task.message for task in tasks if not task.runner.done() or task.runner.cancelled()]

    async def close(self) -> None:
        await self.logbook.flush()
        await self.children.close()


def _failed(message: TaskMessage, error: str, error_types: tuple[str, ...] = ()) -> TaskReport:
    text = redact_text(clean_text(error))
    return TaskReport(message.task_id, message.job_id, message.node_id, "failed", error=text, error_types=error_types)
