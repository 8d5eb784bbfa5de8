"""Parts of a worker: progress, logs and slots of its handlers."""

import asyncio
import gc
import threading
from collections.abc import AsyncIterator
from concurrent.futures import Future
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

from dagmaster.handlers.contract import Checkpoint, HandlerContext
from dagmaster.handlers.invocation import TooLong
from dagmaster.ids import JobId, TaskId
from dagmaster.queues.contract import TaskMessage, TaskReport
from dagmaster.tasklogs.contract import LogUnavailable
from dagmaster.tasklogs.files import FileLogs
from dagmaster.worker.execute import _wait_for_thread
from dagmaster.worker.logbook import Logbook
from dagmaster.worker.progress import ProgressBuffer
from dagmaster.worker.slots import Slots
from dagmaster.worker.spool import MAX_BYTES, Outbox

TASK = TaskId("1_a_0")


class Away(FileLogs):
    """Logs that cannot be stored until they are back."""

    is_back = False

    async def append(self, task_id: str, chunk: bytes) -> None:
        if not self.is_back:
            raise LogUnavailable("away")
        await super().append(task_id, chunk)


async def test_a_log_that_cannot_be_stored_is_limited_in_memory(tmp_path: Path) -> None:
    logs = Away(tmp_path)
    book = Logbook(logs, 1_000_000, backlog_bytes=100)
    opened = book.open(TASK)
    for line in (b"first\n" * 10, b"second\n" * 10):  # There is no room for the second ...
        opened.write(line)
        await book.flush()
    logs.is_back = True
    await book.flush()
    opened.write(b"third\n")
    await book.close(TASK)
    text = await logs.read("1_a_0")
    assert text.startswith(b"first\n") and text.endswith(b"third\n") and b"second" not in text
    assert b"70 bytes left out" in text  # ... and the log says so.


async def test_ended_tasks_whose_logs_could_not_be_stored_are_forgotten(tmp_path: Path) -> None:
    book = Logbook(Away(tmp_path), 1_000_000, backlog_bytes=10)
    for number in range(3):
        book.open(TaskId(f"1_n_{number}")).write(b"line\n" * 10)
        await book.close(TaskId(f"1_n_{number}"))
    assert not book._left_out


class Slow(FileLogs):
    """Logs on a disk that hangs: a cancelled caller does not stop the thread that writes."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.is_writing, self.may_end = asyncio.Event(), threading.Event()
        self._loop = asyncio.get_running_loop()

    def _append(self, task_id: str, chunk: bytes) -> None:
        self._loop.call_soon_threadsafe(self.is_writing.set)
        assert self.may_end.wait(60)
        super()._append(task_id, chunk)


async def test_a_log_is_stored_once_even_if_its_task_is_cancelled_meanwhile(tmp_path: Path) -> None:
    logs = Slow(tmp_path)
    book = Logbook(logs, 1_000_000)
    book.open(TASK).write(b"line\n")
    closing = asyncio.create_task(book.close(TASK))
    await logs.is_writing.wait()
    closing.cancel()
    await asyncio.wait([closing])
    logs.may_end.set()
    await book.flush()
    assert closing.cancelled() and await logs.read(TASK) == b"line\n"


async def test_a_partially_written_log_is_not_duplicated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = FileLogs(tmp_path)
    await logs.append("1_a_0", b"before ")

    def half(descriptor: int, chunk: bytes) -> None:
        with open(descriptor, "wb", buffering=0, closefd=False) as file:
            file.write(chunk[:3])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("dagmaster.tasklogs.files._write_all", half)
        with pytest.raises(LogUnavailable, match="No space left"):
            await logs.append("1_a_0", b"after")
    await logs.append("1_a_0", b"after")
    assert await logs.read("1_a_0") == b"before after"


async def test_many_threads_can_save_checkpoints_while_the_worker_reads() -> None:
    progress_buffer = ProgressBuffer(1000)

    def save_many(task_id: str) -> None:
        save = progress_buffer.checkpoint_sink(TaskId(task_id))
        for number in range(500):
            save(Checkpoint("phase", {"n": number}))

    threads = [threading.Thread(target=save_many, args=(f"1_{name}_0",)) for name in "abcd"]
    for thread in threads:
        thread.start()
    settled = 0
    while settled < 2000:
        await progress_buffer.has_unsaved.wait()
        while (unsaved := progress_buffer.first_unsaved()) is not None:
            progress_buffer._of(TASK)  # As an ending task does.
            progress_buffer.settle(unsaved)
            settled += 1
            if settled % 50 == 0:
                await asyncio.sleep(0)
    for thread in threads:
        thread.join()
    assert progress_buffer.first_unsaved() is None


async def test_a_saved_checkpoint_is_stored_even_if_its_handler_is_gone() -> None:
    """A stopping worker cancels its tasks and then stores their checkpoints."""
    progress_buffer = ProgressBuffer(1000)
    progress_buffer.checkpoint_sink(TASK)(Checkpoint("phase", {}))
    waiting = asyncio.create_task(progress_buffer.all_saved(TASK))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    unsaved = progress_buffer.first_unsaved()
    assert unsaved is not None
    progress_buffer.settle(unsaved)
    assert unsaved.stored.result() is None


async def test_an_ended_handler_is_not_overdue_while_its_checkpoint_is_stored() -> None:
    slots = Slots(2, lambda: None)
    message = TaskMessage(TASK, JobId(1), "a", "h", "q", b"{}", 0.0, 0, datetime.now(UTC))
    runner = asyncio.create_task(asyncio.Event().wait(), name="1_a_0")
    slots.take(message, runner)  # type: ignore[arg-type]
    assert [task.message for task in slots.overdue(-1)] == [message]
    slots.finish(TASK)
    assert slots.overdue(-1) == []
    runner.cancel()


@pytest.fixture
async def unheard() -> AsyncIterator[list[str]]:
    """Exceptions that reach the loop because they were never retrieved."""
    loop, messages = asyncio.get_running_loop(), list[str]()
    loop.set_exception_handler(lambda _, context: messages.append(context["message"]))
    yield messages
    loop.set_exception_handler(None)


async def test_a_checkpoint_of_a_revoked_task_logs_no_error(unheard: list[str]) -> None:
    progress_buffer = ProgressBuffer(1000)
    ctx = HandlerContext(
        task_id=TASK, job_id=1, node_id="a", handler="h", checkpoint_sink=progress_buffer.checkpoint_sink(TASK)
    )

    async def work() -> None:
        await ctx.checkpoint("phase")

    working = asyncio.create_task(work())
    await progress_buffer.has_unsaved.wait()
    working.cancel()
    progress_buffer.forget(TASK)  # The handler, which is gone, would be told that the task is over.
    await asyncio.wait([working])
    await asyncio.sleep(0.01)
    del working
    gc.collect()
    assert unheard == []


async def test_a_thread_that_fails_after_its_cancellation_logs_no_error(unheard: list[str]) -> None:
    thread = Future[None]()
    attempt = SimpleNamespace(execution=SimpleNamespace(stop_within_seconds=10), message=None)

    waiting = asyncio.create_task(_wait_for_thread(attempt, thread))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    thread.set_exception(ValueError("too late"))
    await waiting
    del thread, waiting
    gc.collect()
    assert unheard == []


def test_large_reports_are_sent_one_by_one_and_small_ones_do_not_wait() -> None:
    outbox = Outbox()
    for number, size in enumerate((3, 3, 9, 5, 1)):
        outbox.add(TaskReport(TaskId(f"t{number}"), JobId(1), "n", "completed", b"x" * size))
    sent = []
    while reports := outbox.first(max_bytes=7):
        sent.append([report.task_id for report in reports])
        outbox.remove(reports)
    assert sent == [["t0", "t1", "t4"], ["t3"], ["t2"]]


def test_an_outbox_is_full_until_its_reports_are_accepted() -> None:
    outbox = Outbox()
    outbox.add(TaskReport(TaskId("small"), JobId(1), "n", "completed", b"{}"))
    assert not outbox.is_full
    outbox.add(TaskReport(TaskId("large"), JobId(1), "n", "completed", b"x" * MAX_BYTES))
    assert outbox.is_full
    while reports := outbox.first():
        outbox.remove(reports)
    assert not outbox and not outbox.is_full


async def test_a_checkpoint_over_the_limit_is_refused_with_its_artifacts_counted() -> None:
    keep = ProgressBuffer(100).checkpoint_sink(TASK)
    keep(Checkpoint("half", {"n": "x" * 50}))
    with pytest.raises(TooLong, match="the data of the checkpoint half has 159 bytes; the limit is 100"):
        keep(Checkpoint("half", {"n": "x" * 151}))
    with pytest.raises(TooLong, match="artifacts of the checkpoint half"):
        keep(Checkpoint("half", {"n": "x" * 50}, artifacts=({"path": "y" * 60},)))
