import asyncio
import io
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextvars import copy_context

import pytest
from rich.console import Console
from rich.live import Live

from dagmaster.logs import set_up_logs
from dagmaster.worker.capture import TAIL_BYTES, TaskLog, capturing, install, uninstall

MAX = 1024 * 1024


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Terminal]]:
    """Start to record the worker's terminal, stdout and stderr together."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level

    def begin() -> Terminal:  # In the test itself, because before it pytest installs its own streams.
        seen = Terminal()
        monkeypatch.setattr(sys, "stdout", seen)
        monkeypatch.setattr(sys, "stderr", seen)
        install()
        return seen

    yield begin
    uninstall()
    root.handlers, root.level = handlers, level


def show(text: object, **options: object) -> None:
    """Print as a handler does: to the current `sys.stdout`."""
    print(text, **options)  # type: ignore[call-overload] # noqa: T201


def taken(log: TaskLog) -> str:
    return log.take().decode()


# Limits of a log


def test_taken_output_is_not_returned_again() -> None:
    log = TaskLog(MAX)
    log.write("ä")
    log.write(b"\xff\n")
    assert log.take() == "ä".encode() + b"\xff\n"
    log.write("more")
    log.finish()
    assert log.take() == b"more"
    log.write("too late")
    assert (log.take(), log.total_bytes) == (b"", 8)


def test_a_log_within_its_limit_is_complete() -> None:
    log = TaskLog(1000)
    for number in range(100):
        log.write(f"line {number:04d}\n")
    log.finish()
    assert taken(log) == "".join(f"line {number:04d}\n" for number in range(100))


def test_a_log_over_its_limit_keeps_its_beginning_and_end_with_a_note() -> None:
    log = TaskLog(10 * 1024 * 1024)
    line = b"x" * 999 + b"\n"
    captured = bytearray()
    for number in range(200_000):
        log.write(line)
        if number % 10_000 == 0:
            captured += log.take()
        assert len(log._tail) <= 2 * TAIL_BYTES
    log.write("the end\n")
    log.finish()
    captured += log.take()
    lines = bytes(captured).splitlines()
    notes = [line.decode() for line in lines if line.startswith(b"[dagmaster: ")]
    assert len(captured) <= 10 * 1024 * 1024 + 500
    assert lines[0] == line.strip() and lines[-1] == b"the end"
    assert notes[0].endswith("limited to 10,485,760 bytes; only the end of the rest is kept]")
    left_out = 200_000_008 - (len(captured) - sum(len(note) + 1 for note in notes)) + 1  # And a newline before a note.
    assert notes[1] == f"[dagmaster: {left_out:,} bytes left out; the log is limited to 10,485,760 bytes]"
    assert log.total_bytes == 200_000_008


@pytest.mark.parametrize("max_bytes", [1, 2, 3, 100])
def test_the_smallest_limits_work(max_bytes: int) -> None:
    log = TaskLog(max_bytes)
    for _ in range(1000):
        log.write("0123456789")
    log.finish()
    assert len(log.take().replace(b"\n", b"")) < max_bytes + 300


def test_a_single_huge_write_is_truncated_too() -> None:
    log = TaskLog(1000)
    log.write("a" * 500 + "b" * 10_000_000 + "c" * 500)
    log.finish()
    text = taken(log)
    assert text.startswith("a" * 500) and text.endswith("c" * 500)
    assert "10,000,000 bytes left out" in text


def test_many_threads_may_write_at_once() -> None:
    log = TaskLog(MAX)

    def write_lines() -> None:
        for _ in range(1000):
            log.write("0123456789\n")

    threads = [threading.Thread(target=write_lines) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert taken(log).splitlines() == ["0123456789"] * 8000


# Captured output


def test_output_printed_in_a_task_goes_only_to_its_log(terminal: Callable[[], Terminal]) -> None:
    out = terminal()
    log = TaskLog(MAX)
    show("before")
    with capturing(log):
        show("inside")
        show("on stderr", file=sys.stderr)
        sys.stdout.writelines(["a", "b\n"])
    show("after")
    assert taken(log) == "inside\non stderr\nab\n"
    assert out.getvalue() == "before\nafter\n"


async def test_logs_of_concurrent_tasks_are_not_mixed(terminal: Callable[[], Terminal]) -> None:
    out = terminal()
    logs = [TaskLog(MAX) for _ in range(10)]

    def blocking(number: int) -> None:
        show(f"{number} in a thread")

    async def task(number: int) -> None:
        with capturing(logs[number]):
            for step in range(5):
                show(f"{number} {step}")
                await asyncio.sleep(0)
            await asyncio.to_thread(blocking, number)
            await asyncio.create_task(asyncio.to_thread(blocking, number))

    await asyncio.gather(*map(task, range(10)))
    for number, log in enumerate(logs):
        assert taken(log).splitlines() == [*(f"{number} {step}" for step in range(5)), *[f"{number} in a thread"] * 2]
    assert out.getvalue() == ""


def test_a_thread_belongs_to_its_task_only_with_a_copied_context(terminal: Callable[[], Terminal]) -> None:
    out = terminal()
    log = TaskLog(MAX)
    with capturing(log):
        plain = threading.Thread(target=show, args=["alone"])
        copied = threading.Thread(target=copy_context().run, args=[show, "with it"])
        for thread in (plain, copied):
            thread.start()
            thread.join()
    assert (taken(log), out.getvalue()) == ("with it\n", "alone\n")


def test_output_printed_after_the_end_of_a_task_goes_to_stdout(terminal: Callable[[], Terminal]) -> None:
    out = terminal()
    log = TaskLog(MAX)
    with capturing(log):
        log.finish()
        show("late")
    assert (log.take(), out.getvalue()) == (b"", "late\n")


def test_bytes_are_captured_too(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="utf-8"))
    install()
    log = TaskLog(MAX)
    buffer = sys.stdout.buffer
    buffer.write(b"outside\n")
    with capturing(log):
        assert buffer.write(b"\x00\xff") == 2
        with pytest.raises(TypeError, match="takes str, not bytes"):
            sys.stdout.write(b"x")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="takes bytes, not str"):
            buffer.write("x")  # type: ignore[call-overload]
    sys.stdout.flush()
    uninstall()
    assert (log.take(), raw.getvalue()) == (b"\x00\xff", b"outside\n")


def test_outside_tasks_the_streams_are_unchanged(terminal: Callable[[], Terminal]) -> None:
    out = terminal()
    assert sys.stdout.isatty()
    assert sys.stdout.getvalue() == ""  # type: ignore[union-attr]
    with capturing(TaskLog(MAX)):
        assert not sys.stdout.isatty()
    with pytest.raises(io.UnsupportedOperation):
        sys.stdout.fileno()
    with pytest.raises(AttributeError):
        sys.stdout.buffer  # noqa: B018
    uninstall()
    assert sys.stdout is out and sys.stderr is out


# Log records


def test_log_records_of_a_task_go_to_its_log_and_to_stderr(terminal: Callable[[], Terminal]) -> None:
    out = terminal()
    set_up_logs("info", "text")
    log = TaskLog(MAX)
    logging.getLogger("worker").info("outside")
    with capturing(log):
        logging.getLogger("mine").info("password=hunter2 is known")
        logging.getLogger("mine").debug("too much")
    [line] = taken(log).splitlines()
    assert line.endswith("INFO    mine: password=*** is known")
    first, second = out.getvalue().splitlines()
    assert first.endswith("worker: outside")
    assert second == line


def test_a_traceback_is_in_the_log(terminal: Callable[[], Terminal]) -> None:
    terminal()
    log = TaskLog(MAX)
    with capturing(log):
        try:
            raise ValueError("no luck")
        except ValueError:
            logging.getLogger("mine").exception("failed")
    text = taken(log)
    assert "ERROR   mine: failed\nTraceback" in text and text.endswith("ValueError: no luck\n")


def test_a_record_that_cannot_be_formatted_does_not_fail_the_task(terminal: Callable[[], Terminal]) -> None:
    terminal()
    set_up_logs("info", "text")
    log = TaskLog(MAX)
    with capturing(log):
        logging.getLogger("mine").warning("%d things", "many")
    assert "Logging error" in taken(log)


def test_printed_text_is_kept_unchanged(terminal: Callable[[], Terminal]) -> None:
    terminal()
    log = TaskLog(MAX)
    with capturing(log):
        show("password=hunter2")
    assert taken(log) == "password=hunter2\n"


# Live views


@pytest.mark.parametrize("first", ["the view", "the worker"])
def test_a_live_view_stays_on_the_terminal_and_out_of_logs(terminal: Callable[[], Terminal], first: str) -> None:
    out = terminal()
    set_up_logs("info", "text")
    if first == "the view":
        uninstall()
    log = TaskLog(MAX)
    with Live("a picture", console=Console(force_terminal=True, width=80), auto_refresh=False) as live:
        install()
        show("outside")
        with capturing(log):
            show("inside")
            logging.getLogger("mine").warning("logged")
        live.update("another picture", refresh=True)
    lines = taken(log).splitlines()
    assert lines[0] == "inside" and lines[1].endswith("mine: logged") and len(lines) == 2
    seen = out.getvalue()
    assert "outside" in seen and "mine: logged" in seen and "another picture" in seen
    assert "inside" not in seen
    with capturing(log):
        show("afterwards")
    assert taken(log) == "afterwards\n"
